"""What the roles of the settings mean for a run: its name, and what may change when it continues."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigpt.config.convert import settings, shown, values
from minigpt.config.schema import REMOVED
from minigpt.config.setting import Role
from minigpt.config.sources import name_of
from minigpt.redact import redact_values

NAMED: tuple[Role, ...] = ("weights", "content", "schedule")  # roles that the hash in a run's name covers
FIXED: tuple[Role, ...] = ("weights",)  # roles whose settings a run keeps for good

# Up to 0.1.0 the hash in a run's name covered every setting but these, also settings at their defaults.
OLD_NOT_NAMED = ("experiment", "data.dir", "samples.", "checkpoint.", "logger.", "run.")


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
        return self.role not in FIXED

    def __str__(self) -> str:
        was, now = (text if len(text) <= 300 else f"{text[:300]}..." for text in (repr(self.was), repr(self.now)))
        return f"{self.key}: {was} -> {now}"


def with_role(cls: type, *roles: Role) -> set[str]:
    """Return the settings of a config class that have one of these roles."""
    return {key for key, setting in settings(cls).items() if setting.role in roles}


def differences(saved: Mapping[str, Any], config: Any) -> list[Change]:
    """Return the settings in which a config differs from a stored one.

    Args:
        saved: the stored one, flat, as it was written: without secrets, perhaps by another version. A setting that it
            lacks had its default, and one that was removed since is left out.
        config: the config to compare it with.
    """
    known = settings(config.__class__)
    was = {key: setting.default for key, setting in known.items()} | dict(saved)
    now = redact_values(values(config))
    return [
        Change(key, was[key], now.get(key), known[key].role if key in known else "weights")
        for key in sorted(was)
        if was[key] != now.get(key) and (key in known or key not in REMOVED)
    ]


def removed_settings(saved: Mapping[str, Any], cls: type) -> list[str]:
    """Return a sentence for each stored setting that had an effect and is ignored now, because it was removed."""
    gone = [key for key in saved if key in REMOVED and key not in settings(cls) and saved[key]]
    return [f"{key}={shown(saved[key])}, which is ignored: {REMOVED[key]}." for key in gone]


def config_hash(config: Any) -> str:
    """Return eight hex digits that name a training: its settings that change the weights and aren't the defaults."""
    known = settings(config.__class__)
    changed = {key: value for key, value in values(config).items() if value != known[key].default}
    return _digest({key: value for key, value in changed.items() if known[key].role in NAMED})


def default_run_dir(config: Any) -> str:
    """Return runs/<experiment or text>-<hash>; an old name if it exists, so that a command finds the run it began."""
    old = f"runs/{config.experiment.replace('/', '-')}-{old_config_hash(config)}"
    if os.path.isdir(old):
        return old
    name = config.experiment
    if name == "default" and config.data.name in ("text", "chat") and config.data.source:
        name = re.sub(r"[^\w.+-]+", "-", Path(name_of(config.data.source)).stem)[:50].strip("-.") or "text"
    elif name == "default" and config.data.mix:
        stems = "-".join(Path(source).stem for source in config.data.mix)
        name = re.sub(r"[^\w.+-]+", "-", f"mix-{stems}")[:50].strip("-.")
    return f"runs/{name.replace('/', '-')}-{config_hash(config)}"


def old_config_hash(config: Any) -> str | None:
    """Return the hash that named a config's run up to 0.1.0; None for a config that needs a later setting."""
    known, now = settings(config.__class__), values(config)
    if any(now[key] != setting.default for key, setting in known.items() if setting.since and setting.role in NAMED):
        return None
    return _digest({key: now[key] for key in now if not known[key].since and not key.startswith(OLD_NOT_NAMED)})


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
