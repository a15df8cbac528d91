"""A sweep as its command line describes it, checked. Nothing is written before all of it is right."""

import contextlib
import io
import itertools
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.config.command_line import train_arguments
from minigpt.config.compose import compose
from minigpt.config.convert import values
from minigpt.config.run_names import config_hash
from minigpt.config.schema import SweepConfig, TrainConfig
from minigpt.config.yaml_files import find_groups
from minigpt.faults import UserFault

TRIALS = 20  # by default
MAX_CHECKED, MAX_SHOWN = 64, 5  # points that are tried before the first trial, impossible ones that are named
LEARNED = ("char", "bpe")  # tokenizers whose vocabulary follows from the text


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    config: SweepConfig  # with the settings that all trials share
    shared: list[str]  # the arguments that all trials get
    space: dict[str, Any]  # searched setting -> its values, as Optuna describes them
    trials: int
    folder: Path
    train: list[str]  # the command that trains

    @property
    def mark_tokens(self) -> int:
        """Tokens between the marks where trials are compared; 0 if there are none."""
        return self.config.search.prune_every_tokens or self.config.validate.every_steps * self.config.batch_tokens


def read_sweep(arguments: list[str], train: list[str]) -> Sweep:
    """Return the sweep that a command line describes; `train` is the command that trains, before its settings."""
    config = compose("sweep", arguments)
    from minigpt.sweep.space import points, read_space

    shared = train_arguments("sweep", arguments)
    space, faults = read_space(config.search.space, find_groups(TrainConfig), config.search.sampler)
    faults = faults or _unfit_search(config) + _unfit_points(config, space, shared)
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    search = ["own", *(word.partition("=")[2] for word in arguments if word.startswith("search="))][-1]
    name = "-".join(part.replace("/", "-") for part in (config.experiment, search))
    folder = Path(os.path.expanduser(config.sweep.dir or f"sweeps/{name}-{config_hash(config)}"))
    trials = config.trials or TRIALS
    if config.search.sampler == "grid":
        trials = len(list(itertools.islice(points(space), config.trials)))
    return Sweep(config, shared, space, trials, folder, train)


def _unfit_search(config: SweepConfig) -> list[str]:
    """Return a sentence for each thing in a search that does not fit the other settings."""
    pruner, trainer, faults = config.search.pruner, config.trainer, []
    if config.run.dir is not None:
        faults.append("The sweep gives each trial its run.dir. Leave it out; sweep.dir=DIR names the sweep's.")
    if pruner != "none" and not config.search.prune_every_tokens and not config.validate.every_steps:
        none = f"search.pruner={pruner} compares validations, and validate.every_steps=0 makes none before the end"
        faults.append(f"{none}. Set validate.every_steps, or search.pruner=none.")
    if pruner == "hyperband" and trainer.max_steps is None and trainer.max_tokens is None:
        faults.append("search.pruner=hyperband must know how long a run is. Set trainer.max_steps or max_tokens.")
    return faults


def _unfit_points(config: SweepConfig, space: dict[str, Any], shared: list[str]) -> list[str]:
    """Return a sentence for each point of the space that `train` would refuse, or that can't be compared."""
    from minigpt.sweep.space import overrides, points

    faults: dict[str, str] = {}
    texts, vocabularies = set(), set()
    corners = list(itertools.islice(points(space), 10_000))
    for point in random.Random(0).sample(corners, min(len(corners), MAX_CHECKED)):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # notes on settings
                whole = values(compose("train", [*shared, *overrides(point)]))
            data = {key: whole[key] for key in sorted(whole) if key.startswith("data.") and key != "data.dir"}
            tokenizer = {key: whole[key] for key in sorted(whole) if key.startswith("tokenizer.")}
            texts.add(whole["data.val_source"] or str(data))
            vocabularies.add(str([tokenizer, data if whole["tokenizer.name"] in LEARNED else None]))
        except UserFault as fault:
            for sentence in fault.faults:
                faults.setdefault(sentence, f"At {', '.join(overrides(point))}: {sentence}")
    listed = list(faults.values())[:MAX_SHOWN]
    if len(texts) > 1:
        remedy = "Make a sweep for each, or set data.val_source=FILE for all"
        listed.append(f"The trials would be validated on different texts. {remedy}.")
    if len(vocabularies) > 1 and config.sweep.metric == "val/loss":
        listed.append("val/loss can't be compared between vocabularies. Add sweep.metric=val/bits_per_byte.")
    return listed
