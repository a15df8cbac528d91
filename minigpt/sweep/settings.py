"""A sweep as its command line describes it, checked. Nothing is written before all of it is right."""

import contextlib
import functools
import glob
import importlib.util
import io
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.config.check import find_faults
from minigpt.config.command_line import train_arguments
from minigpt.config.compose import compose
from minigpt.config.convert import as_typed, from_dict, settings, values
from minigpt.config.roles import NAMED, Change, config_hash, differences
from minigpt.config.schema import SweepConfig, TrainConfig
from minigpt.config.yaml_files import find_groups
from minigpt.faults import UserFault
from minigpt.invocation import typed
from minigpt.redact import redact_arguments
from minigpt.report.record import read_mapping
from minigpt.sweep.process import Slot

TRIALS = 20  # by default
MAX_SHOWN = 5  # impossible points that are named


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    config: SweepConfig  # with the settings that all trials share
    arguments: list[str]  # as they were typed
    shared: list[str]  # those arguments that all trials get
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
        now = {**values(self.config), **params}
        tokens = now["trainer.max_tokens"]
        return now["trainer.max_steps"] if tokens is None else math.ceil(tokens / now["batch_tokens"])

    @property
    def total_tokens(self) -> int:
        """Tokens of a whole run; 0 when only time limits it."""
        return self.config.trainer.max_tokens or (self.steps_of({}) or 0) * self.config.batch_tokens

    def peak_is_reached(self, params: Mapping[str, Any]) -> bool:
        """Return whether a trial's warm-up ends before its run does, judged by its own settings alone."""
        steps = self.steps_of(params)
        return steps is None or params.get("schedule.warmup_steps", self.config.schedule.warmup_steps) <= steps

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


def read_sweep(arguments: list[str], train: list[str]) -> Sweep:
    """Return the sweep that a command line describes.

    Args:
        arguments: after the script's name.
        train: the command that trains, before its settings.

    Raises:
        UserFault: it has faults, all of which are named.
        SystemExit: code 0, after --help or --cfg job has printed.
    """
    config = compose("sweep", arguments)
    if importlib.util.find_spec("optuna") is None:
        raise UserFault(f"Sweeps need the package 'optuna'. Type: {sys.executable} -m pip install 'optuna>=4.9,<6'")
    from minigpt.sweep.search import grid_size, read_space

    theirs = train_arguments("sweep", arguments)
    space, faults = read_space(config.search.space, find_groups(TrainConfig), config.search.sampler)
    faults = faults or _unfit_search(config, space) + _impossible_points(space, theirs)
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    search = ["own", *(each.partition("=")[2] for each in arguments if each.startswith("search="))][-1]
    folder = os.path.expanduser(config.sweep.dir or _default_folder(config, search))
    trials = config.trials or TRIALS
    if config.search.sampler == "grid":
        trials = min(config.trials or sys.maxsize, grid_size(space))
    return Sweep(config, arguments, theirs, space, trials=trials, folder=Path(folder), train=train)


def changed_settings(saved: Mapping[str, Any], config: SweepConfig) -> list[Change]:
    """Return the changed settings that make it another sweep, whose trials can't be compared with the stored ones.

    Args:
        saved: flat; also as an older version wrote it, with a line `search.space KEY` for each searched setting.
        config: to compare it with.
    """
    start = "search.space "
    flat = {key: value for key, value in saved.items() if not key.startswith(start)}
    parts = {key.removeprefix(start): words for key, words in saved.items() if key.startswith(start)}
    if parts:
        flat["search.space"] = parts
    return [change for change in differences(flat, config) if change.role in NAMED]


def _default_folder(config: SweepConfig, search: str) -> str:
    """Return sweeps/<experiment>-<search>-<hash>, or the folder with an old hash of a sweep that this command began."""
    start = "-".join(name.replace("/", "-") for name in (config.experiment, search))
    for file in sorted(Path("sweeps").glob(f"{glob.escape(start)}-????????/sweep.yaml")):
        if not changed_settings(read_mapping(file), config):
            return str(file.parent)
    return f"sweeps/{start}-{config_hash(config)}"


def _unfit_search(config: SweepConfig, space: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each thing in a search that does not fit the other settings."""
    pruner, trainer, faults = config.search.pruner, config.trainer, []
    if config.run.dir is not None:
        faults.append("The sweep gives each trial its run.dir. Leave it out; sweep.dir=DIR names the sweep's.")
    if config.seeds > 1 and "seed" in space:
        faults.append(f"seeds={config.seeds} and search.space seed: the seed can't be both. Leave out one of them.")
    if config.sweep.metric == "val/loss" and any(key.partition(".")[0] == "tokenizer" for key in space):
        faults.append("val/loss can't be compared between tokenizers. Add sweep.metric=val/bits_per_byte.")
    fixed = {"data.dir"} | ({"data.source"} if config.data.val_source else set())
    if texts := [key for key in space if key.partition(".")[0] == "data" and key not in fixed]:
        remedy = "Make a sweep for each, or, to search data.source, set data.val_source=FILE for all"
        faults.append(f"Trials that differ in {', '.join(texts)} are validated on different texts. {remedy}.")
    if pruner != "none" and not config.search.prune_every_tokens and not config.validate.every_steps:
        none = f"search.pruner={pruner} compares validations, and validate.every_steps=0 makes none before the end"
        faults.append(f"{none}. Set validate.every_steps, or search.pruner=none.")
    if pruner == "hyperband" and trainer.max_steps is None and trainer.max_tokens is None:
        faults.append("search.pruner=hyperband must know how long a run is. Set trainer.max_steps or max_tokens.")
    return faults


def _impossible_points(space: dict[str, Any], arguments: list[str]) -> list[str]:
    """Return a sentence for each point of the space that `train` would refuse."""
    from minigpt.sweep.search import points_to_check

    known = settings(TrainConfig).keys() - {"experiment"}  # a group's choice changes many settings: compose it
    composed = functools.cache(lambda chosen: values(compose("train", [*arguments, *chosen])))
    faults: dict[str, str] = {}
    for point in points_to_check(space):
        alone = {key: value for key, value in point.items() if key in known}
        chosen = tuple(overrides({key: value for key, value in point.items() if key not in known}))
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # notes on settings
                config = from_dict(TrainConfig, composed(chosen) | alone)
            sentences = [fault.sentence for fault in find_faults(config)]
        except UserFault as fault:
            sentences = list(fault.faults)
        for sentence in sentences:
            faults.setdefault(sentence, f"At {', '.join(overrides(point))}: {sentence}")
    more = [f"... and {len(faults) - MAX_SHOWN} more points of the search are impossible."]
    return list(faults.values())[:MAX_SHOWN] + (more if len(faults) > MAX_SHOWN else [])
