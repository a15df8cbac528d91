"""The name of a run, and the settings that may change when it continues: both follow from the settings' roles."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigpt.config.convert import seconds_of, settings, values
from minigpt.config.setting import Role
from minigpt.config.sources import as_one_spelling, display_name, expand
from minigpt.redact import redact_values

NAMED: tuple[Role, ...] = ("weights", "content", "schedule")  # roles that the hash in a run's name covers
NO_NAME = r"[^\w\u0900-\u0eff.+-]+"  # what no file is named with; the block has the vowel signs from Hindi to Lao


@dataclasses.dataclass(frozen=True)
class Change:
    """A setting whose value is not the one that a run has stored."""

    key: str
    was: Any
    now: Any
    role: Role

    def __str__(self) -> str:
        return f"{self.key}: {self.was!r} -> {self.now!r}"


def differences(saved: Mapping[str, Any], config: Any) -> list[Change]:
    """Return the settings that differ between a stored config (flat, without secrets) and a new one.

    A setting that the stored config lacks had its default.
    """
    known, now = settings(config.__class__), redact_values(values(config))
    was = {key: setting.default for key, setting in known.items()} | dict(saved)
    return [
        Change(key, was[key], now.get(key), known[key].role if key in known else "weights")
        for key in sorted(was)
        if _one_spelling(key, was[key]) != _one_spelling(key, now.get(key))
    ]


def config_hash(config: Any) -> str:
    """Return eight hex digits that name a training: its settings that change the weights and aren't the defaults."""
    known = settings(config.__class__)
    changed = {key: value for key, value in values(config).items() if value != known[key].default}
    facts = {key: _one_spelling(key, value) for key, value in changed.items() if known[key].role in NAMED}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def run_dir_of(config: Any) -> Path:
    """Return the folder of a training's run."""
    return Path(expand(config.run.dir or default_run_dir(config)))


def default_run_dir(config: Any) -> str:
    """Return runs/EXPERIMENT-TEXT-SHAPE-HASH, like text-md-3x128-a1b2c3; the SHAPE of a budget is its time."""
    parts = [] if config.experiment == "default" else [config.experiment.replace("/", "-")]
    if config.data.mix:
        parts.append(_as_name("-".join(["mix", *(Path(source).stem for source in config.data.mix)])))
    elif config.data.name in ("text", "chat") and config.data.source:
        parts.append(_as_name(Path(display_name(config.data.source)).stem) or "text")
    seconds = seconds_of(str(config.budget)) or 0.0
    time = f"{seconds:g}s" if seconds % 60 else f"{seconds / 60:g}min"
    shape = time if seconds else f"{config.model.n_layer}x{config.model.n_embd}"
    return f"runs/{'-'.join([*(parts or ['default']), shape, config_hash(config)[:6]])}"


def _one_spelling(key: str, value: Any) -> Any:
    """Return a value so that equal paths are equal texts: texts, texts/ and ./texts are one folder."""
    if key == "budget" and value:
        return seconds_of(value) or value
    if key == "data.mix" and isinstance(value, Mapping):
        return {as_one_spelling(source): share for source, share in value.items()}
    is_path = key in ("data.source", "data.val_source", "tokenizer.file", "init.from")
    return as_one_spelling(value) if is_path and isinstance(value, str) else value


def _as_name(text: str) -> str:
    return re.sub(NO_NAME, "-", text)[:50].strip("-.")
