"""From a command line to a checked, typed config.

Files first (the chosen group files, then the experiment), a typed group over its experiment, typed settings last. Every
fault of the files and the command line is reported at once, before torch is imported and before anything is written.
"""

import contextlib
import inspect
import json
import os
import sys
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigpt.config.check import find_faults, stored_config
from minigpt.config.command_line import Request, read_arguments
from minigpt.config.commands import CLASSES
from minigpt.config.convert import assign, checked_value, flatten, in_words, read, settings, shown, values
from minigpt.config.schema import TrainConfig, TrainerConfig
from minigpt.config.sources import exists, is_begun, local_path
from minigpt.config.yaml_files import compose_files, find_groups, to_yaml
from minigpt.faults import MEANINGS, UserFault
from minigpt.files import read_json
from minigpt.imported_models import imported_settings, tokenizer_settings
from minigpt.invocation import PARENT, launched, typed
from minigpt.redact import redact

TAKEN_OVER = ("seed", "data.dir", "trainer.precision")  # by the first stage, like settings of the role `machine`
WIDTH = 98  # of help pages
OF_GROUPS = """\
Write group=choice to take a file of configs/, key=value for a single setting. The last one wins.
--config-dir DIR     also look for group files in DIR, e.g. DIR/experiment/mine.yaml
-m                   of train: train each combination of lists like optimizer.lr=1e-3,3e-3 seed=1,2"""
OF_ALL = """\
--cfg job            print the composed configuration as YAML and stop
The text of paths, prompts and the like is taken as it is: only the shell needs quotes.
~ means your home folder."""
USUAL = """data.source budget run.dir tokenizer.vocab_size model.n_layer model.n_head model.n_embd model.block_size
model.dropout batch_tokens optimizer.lr trainer.max_steps trainer.epochs trainer.max_minutes trainer.device
validate.every_steps checkpoint.every_steps samples.prompt init.from seed"""  # settings of `train --help`


def compose(command: str, arguments: list[str]) -> Any:
    """Return the config that a command line describes: `command`, one of CLASSES, and the arguments after it.

    Raises:
        UserFault: with every fault of the command line, the files and the rules (check.py).
        SystemExit: code 0, after --help or --cfg job has printed.
    """
    request = Request(command, CLASSES[command])
    read_arguments(request, arguments)
    if request.values.get("budget") and "experiment" in request.groups():
        request.choices.setdefault("experiment", "text")
    mapping = _read_files(request)
    if request.help:
        print(_help_page(request, mapping | request.values))
        raise SystemExit(0)
    config: Any
    config, wrong = read(request.cls, mapping | request.values | _inherit(request, mapping | request.values))
    if isinstance(config, TrainConfig):
        config.typed, config.folder = frozenset({*request.values, *request.chosen}), request.folder
    prints = command not in ("train", "benchmark") or _take_from_launcher(config.trainer, request.values)
    request.refuse_what_is_certain(wrong)
    request.refuse_what_is_certain(find_faults(config))
    for note in request.notes if prints else []:  # before the faults, which a note may explain
        print(f"Note: {note}", file=sys.stderr)
    if request.faults:
        raise UserFault(*dict.fromkeys(fault.sentence for fault in request.faults))
    if request.show:
        print(redact(to_yaml(config)), end="")
        raise SystemExit(0)
    return config


def first_stage(config: TrainConfig) -> TrainConfig | None:
    """Return the config of the training that `init.experiment` names, or None.

    Where the second stage (`config`) changes seed, data.dir or settings of the machine, the first uses the same values;
    --config-dir holds for both.
    """
    name = config.init.experiment
    if name is None or config.init.source is not None:
        return None
    folder = [f"--config-dir={config.folder}"] if config.folder else []
    first: TrainConfig = compose("train", [*folder, f"experiment={name}"])
    now = values(config)
    for key, setting in settings(TrainConfig).items():
        if (setting.role == "machine" or key in TAKEN_OVER) and now[key] != setting.default:
            assign(first, key, now[key])
    first.run.dir = config.run.dir and f"{config.run.dir}-{name}"
    return first


def _read_files(request: Request) -> dict[str, Any]:
    """Return the settings in all chosen files, flat. A typed group's values win over its experiment's."""
    if not request.groups():
        return {}
    known, chosen = settings(request.cls), dict(request.choices)
    experiment = chosen.pop("experiment", None)
    try:
        composed = compose_files(request.command, request.choices, request.folder)
        alone = compose_files(request.command, chosen, request.folder) if experiment and chosen else {}
    except ValueError as error:
        request.refuse(f"The config files don't compose: {' '.join(redact(str(error)).split())[:600]}", "experiment")
        return {}
    if isinstance(composed.get("experiment"), Mapping):  # Hydra puts its settings below its group
        first = "must begin with the line # @package _global_."
        request.refuse(f"experiment={shown(experiment)}: its file, or one in its defaults, {first}", "experiment")
        return {}
    if experiment:
        composed.setdefault("experiment", experiment)
    flat = flatten(composed, known)
    of_groups = {key: value for key, value in flatten(alone, known).items() if key.partition(".")[0] in chosen}
    changes = [
        f"{key}={shown(value)} (not {shown(flat[key])})"
        for key, value in of_groups.items()
        if key not in request.values and flat.get(key, value) != value
    ]
    if changes:
        groups = " ".join(f"{group}={choice}" for group, choice in chosen.items())
        request.notes.append(f"{groups} replaces settings of experiment={experiment}: {', '.join(changes)}.")
    request.chosen = set(of_groups)
    return flat | of_groups


def _inherit(request: Request, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of model and tokenizer of the weights in `init.from` or `init.experiment`.

    Args:
        request: receives a fault for each typed setting that contradicts the weights, and a note about the others.
        given: all settings, flat.
    """
    source, name, run = given.get("init.from"), given.get("init.experiment"), given.get("run.dir")
    if isinstance(source, str) and source:  # without it, a run that continues keeps its own architecture
        origin = "run.dir" if not exists(source) and is_begun(run) else "init.from"
        stored = _of_model(request.cls, given[origin])
    elif isinstance(name, str) and source is None:
        origin, stored = "init.experiment", _of_experiment(request, name)
    else:
        return {}
    start, rotary = f"{origin}={shown(given[origin])}", stored.get("model.attention") == "rotary"
    typed = {key for key in stored if key.partition(".")[0] in request.choices and key in given}
    typed |= stored.keys() & request.values.keys()
    for key in sorted(typed):
        value, unfit = checked_value(settings(request.cls)[key].kind, given[key])
        shorter = key == "model.block_size" and not unfit and (rotary or value <= stored[key])
        if not unfit and value != stored[key] and not shorter:
            wrong = f"{key}={shown(value)} does not fit {start}, whose weights have {key}={shown(stored[key])}"
            request.refuse(f"{wrong}. Leave it out: it is taken from there.", key)
    taken = {key: value for key, value in stored.items() if key not in typed}
    changes = [f"{key}={shown(value)}" for key, value in taken.items() if given.get(key, value) != value]
    request.notes += [f"{start} brings {', '.join(changes)}."] if changes else []
    return taken


def _of_weights(cls: type, prefixes: tuple[str, ...] = ("model.", "tokenizer.")) -> list[str]:
    """Return the settings of model and tokenizer that trained weights depend on."""
    return [key for key, about in settings(cls).items() if key.startswith(prefixes) and about.role == "weights"]


def _of_experiment(request: Request, name: str) -> dict[str, Any]:
    cls, folder = request.cls, request.folder
    if name not in find_groups(cls, folder)["experiment"]:
        raise UserFault(f"init.experiment={shown(name)} is no experiment. `minigpt train --help` lists them")
    first = flatten(compose_files("train", {"experiment": name}, folder), settings(cls))
    if first.get("init.experiment") is not None:
        wrong = f"init.experiment={name} starts from init.experiment={first['init.experiment']} itself"
        raise UserFault(f"{wrong}. Type minigpt train experiment={name}, then give init.from=ITS_RUN")
    return {key: first.get(key, settings(cls)[key].default) for key in _of_weights(cls)}


def _of_model(cls: type, source: str) -> dict[str, Any]:
    """Return the settings of a run, checkpoint or imported model. {} without one: training then reports it."""
    path = local_path(source)
    if (imported := imported_settings(path)) is not None:
        tokenizer = tokenizer_settings(path)
        stored = values(stored_config(imported[0] | tokenizer))
        return {key: stored[key] for key in _of_weights(cls, ("model.", *tokenizer))}
    for place in ("checkpoints/step-*[0-9]/config.json", "step-*[0-9]/config.json", "config.json"):
        for file in sorted(path.glob(place), reverse=True):
            with contextlib.suppress(UserFault):  # training reports the fault
                stored = values(stored_config(read_json(file)))
                return {key: stored[key] for key in _of_weights(cls)}
    return {}


def _take_from_launcher(trainer: TrainerConfig, typed: Mapping[str, Any]) -> bool:
    """Take hosts and devices from torchrun or srun, if they are left open; return whether this process prints notes."""
    place = launched(trainer)
    if place is None or place.world_size == 1 or trainer.strategy == "auto":
        return True
    if "trainer.devices" not in typed and trainer.devices == 1:
        trainer.devices = place.local_size
    if "trainer.nodes" not in typed and trainer.nodes == 1:
        trainer.nodes = place.nodes
    return place.rank == 0 and PARENT not in os.environ  # the parent has printed them


def _help_page(request: Request, chosen: Mapping[str, Any]) -> str:
    """Return the --help page of a command, with the values that typed files and settings give.

    If the command starts trainings, its own settings come first, then the usual ones of `train`, or with `--help all`
    all of them, by section.
    """
    command, cls, groups, kinds = request.command, request.cls, request.groups(), typing.get_type_hints(request.cls)
    codes = ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    known, train = settings(cls), settings(TrainConfig) if issubclass(cls, TrainConfig) else {}
    short = train and request.help != "all"
    lines = [(inspect.getdoc(cls) or "").replace(f"minigpt {command}", typed(command)), ""]
    lines += [OF_GROUPS] if groups else []
    every = f"--help all           each of the {len(known)} settings, and the exit codes"
    lines += [every] if short else [OF_ALL, *_wrapped(f"Exit codes: {codes}", 12)]
    if "experiment" in groups:
        lines += ["", "Experiments, experiment=NAME:"]
        for choice, file in groups["experiment"].items():
            lines += _wrapped(f"  {choice:<28}{_summary(file)}", 30)
    if short:
        lines += ["", "Groups:"]
        for group in sorted(groups.keys() - {"experiment"}):
            lines += _wrapped(f"  {group}={' | '.join(groups[group])}", 4)
        lines += ["", "Settings that people use, with their values here:"]
    usual = [key for key in USUAL.split() if command in ("train", "plan", "slurm") or key not in ("budget", "run.dir")]
    order = [*(key for key in known if key not in train), *(usual if short else train)]
    heading = ""
    for key in order:
        section = key.rpartition(".")[0]
        its = " of its trainings" if key in train and order[0] not in train else ""
        about = f"{section}: {kinds[section].__doc__}" if section in kinds else f"Settings{its}: value (type) meaning"
        if heading != about and not short:
            heading, choices = about, " | ".join(groups.get(section, {}))
            lines += ["", *_wrapped(heading, 4), *_wrapped(f"  {section}={choices}" if choices else "", 4)]
        value = chosen.get(key, known[key].default)
        start = f"  {key}={value if isinstance(value, str) else json.dumps(value)}"
        kind, column = in_words(str if known[key].literal else known[key].kind), 30 if short else 40
        kind = f"({kind}) " if not short or kind.startswith("one of") else ""
        lines += _wrapped(f"{start:<{column - 1}} {kind}{known[key].meaning}".rstrip(), column)
    return "\n".join(lines)


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _summary(file: Path) -> str:
    """Return the comment at the top of a YAML file, apart from Hydra's own lines, up to its first sentence."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    comment = " ".join(line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @"))
    return comment.partition(". ")[0].rstrip(".")
