"""A sweep as its command line describes it, checked. Nothing is written before all of it is right."""

import contextlib
import copy
import functools
import hashlib
import importlib.util
import io
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.config.check import find_faults
from minigpt.config.compose import compose, find_groups, train_arguments
from minigpt.config.convert import from_dict, settings, to_dict
from minigpt.config.roles import NAMED, Change, config_hash, differences, old_config_hash
from minigpt.config.schema import SweepConfig, TrainConfig
from minigpt.faults import UserFault
from minigpt.invocation import typed
from minigpt.redact import redact_arguments
from minigpt.sweep.slots import Slot

TRIALS = 20  # unless said otherwise
MAX_SHOWN = 5  # impossible points are named


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    config: SweepConfig  # with the settings that all trials share
    arguments: list[str]  # as they were typed
    shared: list[str]  # those of them that all trials get
    space: dict[str, Any]  # searched setting -> its values, as Optuna describes them
    trials: int
    folder: Path
    train: list[str]  # the command that trains

    @property
    def name(self) -> str:
        """The sweep's name, in the storage too."""
        return self.folder.resolve().name

    @property
    def command_line(self) -> str:
        """The command that continues the sweep, or joins it, without secrets."""
        return f"{typed('sweep')} {shlex.join(redact_arguments(self.arguments))}"

    @property
    def mark_tokens(self) -> int:
        """Tokens between the marks where trials are compared; 0 if there are none."""
        return self.config.search.prune_every_tokens or self.config.validate.every_steps * self.config.batch_tokens

    def steps_of(self, params: Mapping[str, Any]) -> int | None:
        """Return the optimizer steps of a whole run with these settings; None when only time limits it."""
        now: dict[str, Any] = {
            "trainer.max_tokens": self.config.trainer.max_tokens,
            "trainer.max_steps": self.config.trainer.max_steps,
        }
        now = {**now, "batch_tokens": self.config.batch_tokens, **params}
        tokens = now["trainer.max_tokens"]
        return now["trainer.max_steps"] if tokens is None else math.ceil(tokens / now["batch_tokens"])

    @property
    def total_tokens(self) -> int:
        """Tokens of a whole run; 0 when only time limits it."""
        return self.config.trainer.max_tokens or (self.steps_of({}) or 0) * self.config.batch_tokens

    def peak_is_reached(self, params: Mapping[str, Any]) -> bool:
        """Return whether a trial's warm-up ends before its run, as far as single settings say."""
        steps, warmup = self.steps_of(params), self.config.schedule.warmup_steps
        return steps is None or params.get("schedule.warmup_steps", warmup) <= steps

    def run_dir(self, number: int, place: int) -> Path:
        """Return the run directory of a trial's seed at this place (0, 1, ...)."""
        return self.folder / "trials" / (f"{number:04d}" if self.config.seeds == 1 else f"{number:04d}-{place}")

    def lock_of(self, number: int) -> Path:
        """Return the file whose lock is the claim on a trial."""
        return self.folder / "locks" / f"{number:04d}"

    def command(self, trial: Any, place: int, slot: Slot) -> list[str]:
        """Return the command that trains the seed of a trial (Optuna's) at this place."""
        config, ours = self.config, [f"run.dir={self.run_dir(trial.number, place)}"]
        if config.seeds > 1:
            ours.insert(0, f"seed={config.seed + place}")
        if config.logger.name == "wandb" and config.logger.group is None:
            ours.append(f"logger.group={self.name}")
        if config.trainer.threads == 0 and "trainer.threads" not in trial.params:
            ours.append(f"trainer.threads={slot.threads}")
        return [*self.train, *self.shared, *overrides(trial.params), *ours]


def overrides(point: Mapping[str, Any]) -> list[str]:
    """Return the settings of a point as `train` takes them."""
    return [f"{key}={as_typed(value)}" for key, value in point.items()]


def as_typed(value: Any) -> str:
    """Return a value as it is typed on a command line."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def read_sweep(arguments: list[str], train: list[str]) -> Sweep:
    """Return the sweep that a command line describes.

    Args:
        arguments: behind the script's name.
        train: the command that trains, before its settings.

    Raises:
        UserFault: with every fault at once.
        SystemExit: code 0, after --help or --cfg job has printed.
    """
    config = compose("sweep", arguments)
    if importlib.util.find_spec("optuna") is None:
        raise UserFault(
            f"Sweeps need the Python package 'optuna', which {sys.executable} lacks. Type: "
            f"{sys.executable} -m pip install 'optuna>=4.9,<6'   (`make setup` brings it, too)"
        )
    from minigpt.sweep.space import grid_size, read_space

    theirs = train_arguments("sweep", arguments)
    space, faults = read_space(config.search.space, find_groups(TrainConfig), config.search.sampler)
    faults = faults or _unfit_search(config, space) + _impossible_points(space, theirs, config)
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    search = ["own", *(each.partition("=")[2] for each in arguments if each.startswith("search="))][-1]
    folder = os.path.expanduser(config.sweep.dir or _default_folder(config, search.replace("/", "-")))
    size = grid_size(space) if config.search.sampler == "grid" else None
    trials = min(config.trials or size, size) if size else config.trials or TRIALS
    return Sweep(config, arguments, theirs, space, trials=trials, folder=Path(folder), train=train)


def changed_settings(saved: Mapping[str, Any], config: SweepConfig) -> list[Change]:
    """Return the settings that make a sweep another one than the stored one: its trials could not be compared.

    Args:
        saved: flat, as an older version wrote it, too: that had a line `search.space KEY` for each searched setting.
        config: to compare it with.
    """
    parts = {key: words for key, words in saved.items() if key.startswith("search.space ")}
    flat = {key: value for key, value in saved.items() if key not in parts}
    if parts:
        flat["search.space"] = {key.partition(" ")[2]: words for key, words in parts.items()}
    return [change for change in differences(flat, config) if change.role in NAMED]


def _default_folder(config: SweepConfig, search: str) -> str:
    """Return sweeps/<experiment>-<search>-<hash>: the same command finds the sweep it began, under an old name too."""
    start = f"sweeps/{config.experiment.replace('/', '-')}-{search}-"
    plain = to_dict(config)
    base = old_config_hash(from_dict(TrainConfig, {key: plain[key] for key in to_dict(TrainConfig())}))
    words = {f"search.{key}": value for key, value in plain["search"].items() if key != "space"}
    words |= {f"search.space {key}": value for key, value in config.search.space.items()}
    words |= {"sweep.metric": config.sweep.metric, "sweep.seed": config.sweep.seed}
    old = hashlib.sha256(json.dumps([base, config.seeds, words], sort_keys=True).encode()).hexdigest()[:8]
    return start + (old if os.path.isdir(start + old) else config_hash(config))


def _unfit_search(config: SweepConfig, space: Mapping[str, Any]) -> list[str]:
    """Return what of a search does not fit the settings that it is made on."""
    pruner, trainer, faults = config.search.pruner, config.trainer, []
    if config.run.dir is not None:
        faults.append(
            "run.dir is given by the sweep, one to each trial. Leave it out; sweep.dir=DIR names the sweep's."
        )
    if config.seeds > 1 and "seed" in space:
        faults.append(f"seeds={config.seeds} and search.space seed: the seed can't be both. Leave out one of them.")
    if config.sweep.metric == "val/loss" and any(key.partition(".")[0] == "tokenizer" for key in space):
        faults.append("val/loss can't be compared between tokenizers. Add sweep.metric=val/bits_per_byte.")
    if pruner != "none" and not config.search.prune_every_tokens and not config.validate.every_steps:
        faults.append(
            f"search.pruner={pruner} compares validations, and validate.every_steps=0 makes none before the end. "
            "Set validate.every_steps, or search.pruner=none."
        )
    if pruner == "hyperband" and trainer.max_steps is None and trainer.max_tokens is None:
        faults.append("search.pruner=hyperband wants to know how long a run is. Set trainer.max_steps or max_tokens.")
    return faults


def _impossible_points(space: dict[str, Any], arguments: list[str], config: SweepConfig) -> list[str]:
    """Return the points of the space that `train` would refuse, a sentence each."""
    from minigpt.sweep.space import points_to_check

    known = settings(TrainConfig).keys() - {"experiment"}  # a group's choice changes many settings: compose it
    bases: dict[tuple[str, ...], TrainConfig | None] = {(): config}
    faults: dict[str, Mapping[str, Any]] = {}
    for point in points_to_check(space, config.search.sampler):
        chosen = tuple(overrides({key: value for key, value in point.items() if key not in known}))
        if chosen not in bases:
            bases[chosen] = None
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # notes on settings
                    bases[chosen] = compose("train", [*arguments, *chosen])
            except UserFault as fault:
                faults |= {sentence: point for sentence in fault.faults if sentence not in faults}
        tried = copy.deepcopy(bases[chosen])
        if tried is not None:
            for key in known & point.keys():
                *way, last = key.split(".")
                setattr(functools.reduce(getattr, way, tried), last, point[key])
            for broken in find_faults(tried):
                faults.setdefault(broken.sentence, point)
    found = [f"At {', '.join(overrides(point))}: {sentence}" for sentence, point in faults.items()]
    more = [f"... and {len(found) - MAX_SHOWN} more points of the search are impossible."]
    return found[:MAX_SHOWN] + (more if len(found) > MAX_SHOWN else [])
