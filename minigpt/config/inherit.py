"""The settings that a run takes from the weights it starts with: those of the model and the tokenizer."""

import json
from collections.abc import Container, Mapping
from typing import Any

from minigpt.config.architecture import foreign_settings, tokenizer_settings
from minigpt.config.convert import Fault, fitted, flatten, settings, shown
from minigpt.config.hub import local_path
from minigpt.config.sources import is_begun, there


def inherit(
    cls: type, given: Mapping[str, Any], typed: Container[str], notes: list[str]
) -> tuple[dict[str, Any], list[Fault]]:
    """Return the settings that `init.from` brings, and a fault for each typed one that its weights do not have.

    If `init.from` is gone, a run that continues keeps its own architecture.

    Args:
        cls: the config class.
        given: all settings, flat.
        typed: those that the user typed, alone or by their group.
        notes: gets a line that lists what changes.

    Raises:
        UserFault: it is another program's model, of an architecture that minigpt can't compute.
    """
    source, run, origin = given.get("init.from"), given.get("run.dir"), "init.from"
    if isinstance(source, str) and isinstance(run, str) and not there(source) and is_begun(run):
        source, origin = run, "run.dir"
    stored = inherited_settings(cls, source) if isinstance(source, str) and source else {}
    faults = []
    for key, value in stored.items():
        if key in typed and key != "model.block_size":  # rotary positions may grow
            typed_value = fitted(settings(cls)[key].kind, given[key])[0]
            if resolved(key, typed_value, stored) != resolved(key, value, stored):
                wrong = f"{key}={shown(given[key])} does not fit {origin}={shown(source)}, whose weights have"
                remedy = f"{key}={shown(value)}. Leave it out: it is taken from there."
                faults.append(Fault((key,), f"{wrong} {remedy}"))
    taken = {key: value for key, value in stored.items() if key not in typed}
    changes = [f"{key}={shown(value)}" for key, value in taken.items() if given.get(key, value) != value]
    if changes:
        notes.append(f"{origin}={shown(source)} brings {', '.join(changes)}.")
    return taken, faults


def of_weights(cls: type) -> set[str]:
    """Return the settings of model and tokenizer that trained weights depend on."""
    known = settings(cls)
    return {key for key in known if key.startswith(("model.", "tokenizer.")) and known[key].role == "weights"}


def inherited_settings(cls: type, source: str) -> dict[str, Any]:
    """Return those settings of a run, a checkpoint or another program's model; one that it lacks had its default.

    If nothing can be read there, {}: the training says later what is wrong.

    Raises:
        UserFault: it is another program's model, of an architecture that minigpt can't compute.
    """
    path, known, fixed = local_path(source), settings(cls), of_weights(cls)
    if (foreign := foreign_settings(path)) is not None:
        stored = foreign[0] | tokenizer_settings(path)
        fixed = {key for key in fixed if key.startswith("model.") or key in stored}
    else:
        places = ("config.json", "step-*[0-9]/config.json", "checkpoints/step-*[0-9]/config.json")
        try:
            newest = [file for place in places for file in sorted(path.glob(place))][-1]
            stored = flatten(json.loads(newest.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError, AttributeError, IndexError):
            return {}
    checked = {key: fitted(known[key].kind, stored.get(key, known[key].default)) for key in known if key in fixed}
    return {} if any(wrong for _, wrong in checked.values()) else {key: value for key, (value, _) in checked.items()}


def resolved(key: str, value: Any, model: Mapping[str, Any]) -> Any:
    """Return what a value of the architecture stands for: the choice that a word means, the size that 0 means."""
    width, heads = model.get("model.n_embd", 0), model.get("model.n_head", 1)
    swiglu = model.get("model.activation") == "swiglu"
    sizes = {
        "model.n_kv_head": heads,
        "model.head_dim": width // max(heads, 1),
        "model.n_hidden": -(-8 * width // 96) * 32 if swiglu else 4 * width,  # as minigpt/model/gpt.py has it
    }
    words: dict[str, dict[Any, str]] = {
        "model.bias": {True: "all", False: "none"},
        "model.qk_norm": {"auto": "layernorm" if model.get("model.attention") == "rotary" else "none"},
    }
    return (value or sizes[key]) if key in sizes else words.get(key, {}).get(value, value)
