"""A sweep as its command line describes it, checked. Nothing is written before all of it is right."""

import contextlib
import io
import itertools
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.config.command_line import split_lists, train_arguments
from minigpt.config.compose import compose, first_stage
from minigpt.config.convert import settings, value_from_text, values
from minigpt.config.run_names import config_hash, default_run_dir, run_dir_of
from minigpt.config.schema import SweepConfig, TrainConfig
from minigpt.config.yaml_files import find_groups
from minigpt.faults import UserFault
from minigpt.screen import note

TRIALS = 20  # by default
MAX_CHECKED = 64  # points that are tried before the first trial
FIXED = ("byte", "gpt2")  # tokenizers with one vocabulary; that of others follows from init.from, a file or the text


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    config: SweepConfig  # with the settings that all trials share
    shared: list[str]  # the arguments that all trials get
    space: dict[str, Any]  # searched setting -> its values, as Optuna describes them
    trials: int
    folder: Path
    train: list[str]  # the command that trains
    runs: dict[frozenset[str], Path]  # of `train -m`: settings of a trial -> its run directory, as `train` names it

    @property
    def mark_tokens(self) -> int:
        """Tokens between the marks where trials are compared; 0 if there are none."""
        return self.config.search.prune_every_tokens or self.config.validate.every_steps * self.config.batch_tokens


def read_grid(arguments: list[str], train: list[str]) -> Sweep:
    """Return the sweep of `train -m`: a grid of the listed values, each trial in the run directory of its settings."""
    shared, lists = split_lists(arguments)
    if not lists:
        raise UserFault("-m has no list: optimizer.lr=1e-3,3e-3 or seed=range(1,4). Paths and texts can't be listed")
    known = settings(TrainConfig)
    space = {
        key: {"choices": [value_from_text(known[key].kind, text) if key in known else text for text in texts]}
        for key, texts in lists.items()
    }
    first = [f"{key}={text}" for key, (text, *_) in lists.items()]
    of_grid = ["search.sampler=grid", "sweep.max_failures=0", "sweep.hang_minutes=0"]
    if {key.partition(".")[0] for key in lists} & {"data", "tokenizer", "experiment", "init"}:  # other vocabularies
        of_grid.append("sweep.metric=val/bits_per_byte")
    return read_sweep([*of_grid, *shared, *first, f"search.space={json.dumps(space)}"], train, is_grid=True)


def read_sweep(arguments: list[str], train: list[str], is_grid: bool = False) -> Sweep:
    """Return the sweep that a command line describes; `train` is the command that trains, before its settings."""
    config = compose("sweep", arguments)
    from minigpt.sweep.space import overrides, points, read_space

    space, faults = read_space(config.search.space, find_groups(TrainConfig), config.search.sampler)
    if is_grid and config.seeds > 1:
        faults.append("seeds= is for minigpt sweep. List them: seed=1,2,3.")
    if config.run.dir is not None and not is_grid:
        faults.append("The sweep gives each trial its run.dir. Leave it out; sweep.dir=DIR names the sweep's.")
    pruner = config.search.pruner
    if pruner != "none" and not config.search.prune_every_tokens and not config.validate.every_steps:
        none = f"search.pruner={pruner} compares validations, and validate.every_steps=0 makes none before the end"
        faults.append(f"{none}. Set validate.every_steps, or search.pruner=none.")
    if faults:
        raise UserFault(*faults)
    shared = [word for word in train_arguments("sweep", arguments) if word.partition("=")[0].lstrip("+") not in space]
    corners = [overrides(point) for point in itertools.islice(points(space), 10_000)]
    if len(corners) > MAX_CHECKED and not is_grid:
        corners = random.Random(0).sample(corners, MAX_CHECKED)
    configs = _compose_points(corners, shared)
    incomparable, runs = _incomparable(configs, config.sweep.metric), {}
    if is_grid:
        runs = _run_dirs(configs, corners)
        for sentence in incomparable:
            note(f"Note: {sentence}")
    elif incomparable:
        raise UserFault(*incomparable)
    search = ["own", *(word.partition("=")[2] for word in arguments if word.startswith("search="))][-1]
    name = "-".join(part.replace("/", "-") for part in (config.experiment, "grid" if is_grid else search))
    folder = Path(os.path.expanduser(config.sweep.dir or f"sweeps/{name}-{config_hash(config)}"))
    grid = itertools.islice(points(space), config.trials)
    trials = len([*grid]) if config.search.sampler == "grid" else config.trials or TRIALS
    return Sweep(config, shared, space, trials, folder, train, runs)


def _compose_points(corners: Sequence[list[str]], shared: list[str]) -> list[TrainConfig]:
    """Return the configs of some points of the space; a fault names the first that `train` would refuse."""
    configs: list[TrainConfig] = []
    for words in corners:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # notes on settings
                configs.append(compose("train", [*shared, *words]))
        except UserFault as fault:
            raise UserFault(*(f"At {', '.join(words)}: {sentence}" for sentence in fault.faults)) from None
    return configs


def _run_dirs(configs: Sequence[TrainConfig], corners: Sequence[list[str]]) -> dict[frozenset[str], Path]:
    """Return the run directory of each training of a grid; no two may be the same."""
    words_of: dict[Path, list[str]] = {}
    for config, words in zip(configs, corners, strict=True):
        if (before := first_stage(config)) is not None:  # a name depends on what the run starts from
            config.init.source = before.run.dir or default_run_dir(before)
        if (folder := run_dir_of(config)) in words_of:
            same = f"-m: {' '.join(words_of[folder])} and {' '.join(words)} would have the same run directory, {folder}"
            raise UserFault(f"{same}. Leave out run.dir, values that are there twice, and what changes no weights")
        words_of[folder] = words
    return {frozenset(words): folder for folder, words in words_of.items()}


def _incomparable(configs: Sequence[TrainConfig], metric: str) -> list[str]:
    """Return why the trials' values can't be compared: other validation texts, other vocabularies."""
    texts, vocabularies, faults = set(), set(), []
    for config in configs:
        flat = values(config)
        data = {key: flat[key] for key in sorted(flat) if key.startswith("data.") and key != "data.dir"}
        tokenizer = {key: flat[key] for key in sorted(flat) if key.startswith("tokenizer.")}
        texts.add(config.data.val_source or str(data))
        origin = config.init.source or config.tokenizer.file or data
        vocabularies.add(str([tokenizer, None if config.tokenizer.name in FIXED else origin]))
    if len(texts) > 1:
        faults.append("Trials are validated on different texts. Make a sweep for each, or set data.val_source=FILE.")
    if len(vocabularies) > 1 and metric == "val/loss":
        faults.append("val/loss can't be compared between vocabularies. Add sweep.metric=val/bits_per_byte.")
    return faults
