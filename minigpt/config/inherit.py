"""The settings that a run takes from the weights it starts with: those of the model and the tokenizer."""

import contextlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from minigpt.config.check import stored_config
from minigpt.config.convert import Fault, checked_value, flatten, settings, shown, values
from minigpt.config.sources import exists, is_begun, local_path
from minigpt.config.yaml_files import compose_files, find_groups
from minigpt.faults import UserFault
from minigpt.files import read_json
from minigpt.foreign import foreign_settings, tokenizer_settings


def inherit(
    cls: type, given: Mapping[str, Any], typed: Container[str], folder: Path | None
) -> tuple[dict[str, Any], list[Fault], list[str]]:
    """Return the settings that `init.from` or `init.experiment` brings, faults of typed ones that differ, and notes.

    Args:
        cls: the config class.
        given: all settings, flat.
        typed: those that the user typed, alone or by their group.
        folder: of --config-dir.

    Raises:
        UserFault: another program's model, of an architecture that minigpt can't compute, or no such experiment.
    """
    source, name, run = given.get("init.from"), given.get("init.experiment"), given.get("run.dir")
    if isinstance(source, str) and source:  # without it, a run that continues keeps its own architecture
        origin = "run.dir" if not exists(source) and is_begun(run) else "init.from"
        stored = _of_model(cls, given[origin])
    elif isinstance(name, str) and source is None:
        origin, stored = "init.experiment", _of_experiment(cls, name, folder)
    else:
        return {}, [], []
    start, faults = f"{origin}={shown(given[origin])}", []
    taken = {key: value for key, value in stored.items() if key not in typed}
    for key in [key for key in stored if key in typed]:
        value, unfit = checked_value(settings(cls)[key].kind, given[key])
        rotary = stored.get("model.attention") == "rotary"
        shorter = key == "model.block_size" and not unfit and (rotary or value <= stored[key])
        if not unfit and value != stored[key] and not shorter:
            wrong = f"{key}={shown(value)} does not fit {start}, whose weights have {key}={shown(stored[key])}"
            faults.append(Fault((key,), f"{wrong}. Leave it out: it is taken from there."))
    changes = [f"{key}={shown(value)}" for key, value in taken.items() if given.get(key, value) != value]
    return taken, faults, [f"{start} brings {', '.join(changes)}."] if changes else []


def _of_weights(cls: type, prefixes: tuple[str, ...] = ("model.", "tokenizer.")) -> list[str]:
    """Return the settings of model and tokenizer that trained weights depend on."""
    return [key for key, about in settings(cls).items() if key.startswith(prefixes) and about.role == "weights"]


def _of_experiment(cls: type, name: str, folder: Path | None) -> dict[str, Any]:
    if name not in find_groups(cls, folder)["experiment"]:
        raise UserFault(f"init.experiment={shown(name)} is no experiment. `minigpt train --help` lists them")
    first = flatten(compose_files("train", {"experiment": name}, folder), settings(cls))
    if first.get("init.experiment") is not None:
        remedy = f"Type minigpt train experiment={name}, then give init.from=ITS_RUN"
        raise UserFault(
            f"init.experiment={name} starts from init.experiment={first['init.experiment']} itself. {remedy}"
        )
    return {key: first.get(key, settings(cls)[key].default) for key in _of_weights(cls)}


def _of_model(cls: type, source: str) -> dict[str, Any]:
    """Return the settings of a run, checkpoint or foreign model. {} if none is there: training says why."""
    path = local_path(source)
    if (foreign := foreign_settings(path)) is not None:
        tokenizer = tokenizer_settings(path)
        stored = values(stored_config(foreign[0] | tokenizer))
        return {key: stored[key] for key in _of_weights(cls, ("model.", *tokenizer))}
    for place in ("checkpoints/step-*[0-9]/config.json", "step-*[0-9]/config.json", "config.json"):
        for file in sorted(path.glob(place), reverse=True):
            with contextlib.suppress(UserFault):  # the training says what is wrong
                stored = values(stored_config(read_json(file)))
                return {key: stored[key] for key in _of_weights(cls)}
    return {}
