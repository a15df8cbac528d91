"""What a sweep is going to do: from its command line to a checked plan. Nothing is written before all is right."""

import hashlib
import importlib.util
import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.config.check import find_faults
from minigpt.config.compose import compose, find_groups
from minigpt.config.convert import flatten, nearest, read, settings, to_dict
from minigpt.config.roles import config_hash
from minigpt.config.schema import SweepConfig, TrainConfig
from minigpt.faults import UserFault
from minigpt.redact import redact_arguments
from minigpt.sweep.slots import Slot
from minigpt.sweep.space import Axis, Point, corners, grid_point, grid_size, override, read_space
from minigpt.sweep.trial import Trial, run_directory

TRIALS = 20  # unless said otherwise
SHOWN = 5  # impossible points are named, at most
OURS = ("run.dir", "logger.group")


@dataclass(frozen=True)
class Plan:
    """A sweep, checked."""

    config: SweepConfig
    base: TrainConfig  # what all trials share
    arguments: list[str]  # of scripts/train.py, as they were typed
    typed: list[str]  # all of them
    axes: list[Axis]
    name: str
    folder: Path
    train: list[str]  # the command that trains

    @property
    def trials(self) -> int:
        """How many there will be."""
        wanted = self.config.trials
        if self.config.search.sampler == "grid":
            return min(wanted or grid_size(self.axes), grid_size(self.axes))
        return wanted or TRIALS

    @property
    def command_line(self) -> str:
        """What continues the sweep, or joins it, without secrets."""
        return shlex.join(["python", "scripts/sweep.py", *redact_arguments(self.typed)])

    @property
    def prune_every(self) -> int:
        """Tokens between the marks where trials are compared."""
        return self.config.search.prune_every_tokens or self.base.validate.every_steps * self.base.batch_tokens

    @property
    def whole_run(self) -> int:
        """Tokens of a complete trial, as far as the shared settings say."""
        trainer = self.base.trainer
        if trainer.max_tokens is not None:
            return trainer.max_tokens
        return (trainer.max_steps or 0) * self.base.batch_tokens

    def run_dir(self, number: int, place: int) -> Path:
        """Of a trial's seed at this place."""
        return run_directory(self.folder, number, place, self.config.seeds)

    def overrides(self, trial: Trial, place: int) -> list[str]:
        """What a trial changes in the shared settings."""
        changes = [override(key, value) for key, value in trial.params.items()]
        if self.config.seeds > 1:
            changes.append(f"seed={self.base.seed + place}")
        return changes

    def command(self, trial: Trial, place: int, slot: Slot) -> list[str]:
        """What trains a trial's seed at this place."""
        ours = [f"run.dir={self.run_dir(trial.number, place)}"]
        if self.base.logger.name == "wandb" and self.base.logger.group is None:
            ours.append(f"logger.group={self.name}")
        if self.base.trainer.threads == 0 and "trainer.threads" not in trial.params:
            ours.append(f"trainer.threads={slot.threads}")
        return [*self.train, *self.arguments, *self.overrides(trial, place), *ours]

    def identity(self) -> dict[str, Any]:
        """What may not change while a sweep goes on: else its trials could not be compared."""
        base = flatten(to_dict(self.base))
        changeable = ("trainer.threads", "logger.", "samples.", "checkpoint.", "data.dir", "run.")
        kept = {key: value for key, value in base.items() if not key.startswith(changeable)}
        return {**kept, "seeds": self.config.seeds, **search_identity(self.config)}


def search_identity(config: SweepConfig) -> dict[str, Any]:
    """The search, flat; a space is compared as it is written, key by key."""
    search = to_dict(config)["search"]
    space = {f"search.space {key}": words for key, words in search.pop("space").items()}
    flat = {f"search.{key}": value for key, value in search.items()}
    return {**space, **flat, "sweep.metric": config.sweep.metric, "sweep.seed": config.sweep.seed}


def read_plan(arguments: list[str], train: list[str]) -> Plan:
    """The sweep that a command line describes.

    Args:
        arguments: behind the script's name.
        train: the command that trains, before its settings.

    Raises:
        UserFault: with every fault at once.
        SystemExit: code 0, after --help or --cfg job has printed.
    """
    ours, theirs = split(arguments)
    faults = list(missing_optuna())
    config, base = SweepConfig(), TrainConfig()
    try:
        config = compose("sweep", ours)
    except UserFault as fault:
        faults += fault.faults
    config_dir = option(arguments, "--config-dir", "-cd")
    understood = False
    try:
        base, understood = compose("train", theirs), True
    except UserFault as fault:
        faults += [sentence for sentence in fault.faults if sentence not in faults]
    groups = find_groups(TrainConfig, config_dir)
    axes, wrong = read_space(config.search.space, groups, config.search.sampler)
    if not faults or config.search.space:
        faults += wrong
    if understood and not wrong:
        faults += unfit_search(config, base, axes)
        faults += impossible_points(axes, theirs, base, grid=config.search.sampler == "grid")
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    name = f"{base.experiment.replace('/', '-')}-{choice(ours)}-{fingerprint(config, base)}"
    folder = Path(os.path.expanduser(config.sweep.dir)) if config.sweep.dir else Path("sweeps") / name
    if config.sweep.dir:
        name = folder.resolve().name
    return Plan(config, base, theirs, arguments, axes, name=name, folder=folder, train=train)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments that are the sweep's own, and those of scripts/train.py."""
    own = [*settings(SweepConfig), "search"]
    known = [*settings(TrainConfig), *find_groups(TrainConfig)]
    ours: list[str] = []
    theirs: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name = argument.partition("=")[0].lstrip("+")
        if argument in ("--help", "-h"):
            ours.append(argument)
        elif argument.partition("=")[0] in ("--cfg", "-c", "--config-dir", "-cd"):
            both = [argument, *([rest.pop(0)] if "=" not in argument and rest else [])]
            ours += both
            theirs += both if "config" in argument or "cd" in argument else []
        elif name in own or name.startswith(("search.", "sweep.")):
            ours.append(argument)
        elif name not in known and nearest(name, [*known, *own])[:1] and nearest(name, [*known, *own])[0] in own:
            ours.append(argument)  # whoever has the nearest name says so
        else:
            theirs.append(argument)
    return ours, theirs


def option(arguments: list[str], *names: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE`."""
    for place, argument in enumerate(arguments):
        name, equals, text = argument.partition("=")
        if name in names:
            value = text if equals else arguments[place + 1] if place + 1 < len(arguments) else ""
            return str(Path(os.path.expanduser(value)).resolve()) if value else None
    return None


def choice(arguments: list[str]) -> str:
    """The chosen search, as directories carry it."""
    names = [argument.partition("=")[2] for argument in arguments if argument.startswith("search=")]
    return names[-1].replace("/", "-") if names else "own"


def fingerprint(config: SweepConfig, base: TrainConfig) -> str:
    """Eight hex digits naming what is searched and on what; not how many trials, or by how many workers."""
    facts = [config_hash(base), config.seeds, search_identity(config)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def missing_optuna() -> list[str]:
    """The sentence for an environment without Optuna."""
    if importlib.util.find_spec("optuna") is not None:
        return []
    return [
        f"Sweeps need the Python package 'optuna', which {sys.executable} lacks. Type: "
        f"{sys.executable} -m pip install 'optuna>=4.9,<6'   (`make setup` brings it, too)"
    ]


def unfit_search(config: SweepConfig, base: TrainConfig, axes: Sequence[Axis]) -> list[str]:
    """What of a search does not fit the settings that it is made on."""
    faults = []
    keys = [axis.key for axis in axes]
    for key in OURS:
        if flatten(to_dict(base)).get(key) is not None and key == "run.dir":
            faults.append(
                "run.dir is the sweep's own to give, one to each trial. Leave it out; sweep.dir=DIR names the sweep's."
            )
    if config.seeds > 1 and "seed" in keys:
        faults.append(f"seeds={config.seeds} and search.space seed: the seed can't be both. Leave out one of them.")
    tokenizers = [key for key in keys if key.partition(".")[0] == "tokenizer"]
    if tokenizers and config.sweep.metric == "val/loss":
        faults.append(
            f"search.space {tokenizers[0]}: nats per token can't be compared between tokenizers. "
            "Add sweep.metric=val/bits_per_byte."
        )
    if config.search.pruner != "none":
        if not config.search.prune_every_tokens and not base.validate.every_steps:
            faults.append(
                f"search.pruner={config.search.pruner} compares validations, and validate.every_steps=0 makes none "
                "before the end. Set validate.every_steps, or search.pruner=none."
            )
        if base.trainer.max_steps is None and base.trainer.max_tokens is None and config.search.pruner == "hyperband":
            faults.append(
                "search.pruner=hyperband wants to know how long a run is. Set trainer.max_steps or max_tokens."
            )
    return faults


def impossible_points(axes: Sequence[Axis], arguments: list[str], base: TrainConfig, *, grid: bool) -> list[str]:
    """Points of the space that scripts/train.py would refuse, a sentence each."""
    faults: dict[str, Point] = {}
    bases: dict[tuple, TrainConfig | None] = {(): base}
    points = (grid_point(axes, place) for place in range(min(grid_size(axes), 512))) if grid else corners(axes)
    kinds = settings(TrainConfig)
    for point in points:
        chosen = tuple(override(key, value) for key, value in point.items() if key not in kinds or key == "experiment")
        try:
            if chosen not in bases:
                bases[chosen] = None
                bases[chosen] = compose("train", [*arguments, *chosen])
        except UserFault as fault:
            faults |= {sentence: point for sentence in fault.faults if sentence not in faults}
        start = bases[chosen]
        if start is None:
            continue
        plain = to_dict(start)
        for key, value in point.items():
            if key in kinds and key != "experiment":
                *way, last = key.split(".")
                inner = plain
                for name in way:
                    inner = inner[name]
                inner[last] = value
        config, wrong = read(TrainConfig, plain)
        for broken in [*wrong, *find_faults(config)]:
            faults.setdefault(broken.sentence, point)
    listed = [f"At {', '.join(override(*pair) for pair in point.items())}: {text}" for text, point in faults.items()]
    more = [f"... and {len(listed) - SHOWN} more points of the search are impossible."] if len(listed) > SHOWN else []
    return [*listed[:SHOWN], *more]


def steps_of(base: TrainConfig) -> int | None:
    """Optimizer steps of a whole run; None when only time limits it."""
    if base.trainer.max_tokens is not None:
        return math.ceil(base.trainer.max_tokens / base.batch_tokens)
    return base.trainer.max_steps
