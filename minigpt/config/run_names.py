"""What the roles of the settings mean for a run: its name, and what may change when it continues."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigpt.config.budgets import seconds_of
from minigpt.config.convert import settings, values
from minigpt.config.setting import Role
from minigpt.config.sources import as_one_spelling, display_name
from minigpt.redact import redact_values

NAMED: tuple[Role, ...] = ("weights", "content", "schedule")  # roles that the hash in a run's name covers


@dataclasses.dataclass(frozen=True)
class Change:
    """A setting whose value is not the one that a run has stored."""

    key: str
    was: Any
    now: Any
    role: Role

    @property
    def allowed(self) -> bool:
        """Whether the run may continue with it."""
        return self.role != "weights"

    def __str__(self) -> str:
        return f"{self.key}: {self.was!r} -> {self.now!r}"


def with_role(cls: type, *roles: Role) -> set[str]:
    """Return the settings of a config class that have one of these roles."""
    return {key for key, setting in settings(cls).items() if setting.role in roles}


def differences(saved: Mapping[str, Any], config: Any) -> list[Change]:
    """Return the settings in which a config differs from a stored one, flat and as it was written: without secrets.

    A setting that the stored one lacks had its default.
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


def default_run_dir(config: Any) -> str:
    """Return runs/<experiment or text>-<hash>."""
    name = config.experiment
    if name == "default" and config.data.name in ("text", "chat") and config.data.source:
        name = _as_name(Path(display_name(config.data.source)).stem) or "text"
    elif name == "default" and config.data.mix:
        name = _as_name("-".join(["mix", *(Path(source).stem for source in config.data.mix)]))
    return f"runs/{name.replace('/', '-')}-{config_hash(config)}"


def _one_spelling(key: str, value: Any) -> Any:
    """Return a value so that equal paths are equal texts: texts, texts/ and ./texts are one folder."""
    if key == "budget" and value:
        return seconds_of(value) or value
    if key == "data.mix" and isinstance(value, Mapping):
        return {as_one_spelling(source): share for source, share in value.items()}
    is_path = key in ("data.source", "data.val_source", "tokenizer.file", "init.from")
    return as_one_spelling(value) if is_path and isinstance(value, str) else value


def _as_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text)[:50].strip("-.")
