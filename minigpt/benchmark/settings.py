"""What a benchmark measures: from its command line to a checked plan. Torch is not imported."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minigpt.config.commands import BenchmarkConfig
from minigpt.config.compose import compose, train_arguments
from minigpt.config.convert import from_dict, settings, to_dict, values
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault


@dataclass(frozen=True)
class Preset:
    """A model size that others publish figures of, and how long a measurement of it lasts."""

    settings: tuple[str, ...]  # of minigpt train
    steps: int  # timed in each measurement
    warm_up: int  # optimizer steps before them
    vocab_size: int
    new_tokens: int  # written after each prompt when sampling


def _sizes(n_layer: int, n_head: int, n_embd: int, block_size: int, batch: int) -> tuple[str, ...]:
    return (
        f"model.n_layer={n_layer}", f"model.n_head={n_head}", f"model.n_embd={n_embd}",
        f"model.block_size={block_size}", f"batch_tokens={batch * block_size}", f"trainer.micro_batch={batch}",
        "model.bias=false", "model.activation=gelu", "model.dropout=0",
    )  # fmt: skip


GPT2 = ("optimizer.lr=6e-4", "optimizer.beta2=0.95")
PRESETS = {
    "c0": Preset(_sizes(4, 4, 128, 64, 12), steps=300, warm_up=20, vocab_size=65, new_tokens=48),
    "c1": Preset(_sizes(6, 6, 384, 256, 16), steps=40, warm_up=10, vocab_size=65, new_tokens=240),
    "124m": Preset((*_sizes(12, 12, 768, 1024, 32), *GPT2), steps=60, warm_up=20, vocab_size=50257, new_tokens=64),
    "350m": Preset((*_sizes(24, 16, 1024, 1024, 16), *GPT2), steps=40, warm_up=10, vocab_size=50257, new_tokens=64),
}
GPU = {"124m": "training,variants,resuming,sampling", "350m": "training"}  # what preset=gpu measures

# How a setting of minigpt train begins that the benchmark gives itself -> why, and what to type instead.
TAKEN = {
    "trainer.max_": "steps=N times N steps of each measurement",
    "trainer.devices": "one device is measured",
    "trainer.strategy": "one device is measured",
    "run": "runs go to a temporary folder; TMPDIR=DIR in front of the command says where that is",
    "init": "all contenders start from the same new weights",
    "experiment": "preset=NAME names the size, and single settings change it",
    "data": "the benchmark makes its own tokens, the same for all contenders",
    "tokenizer": "the benchmark makes its own tokens, the same for all contenders",
}


@dataclass(frozen=True)
class Plan:
    """A benchmark, checked."""

    config: BenchmarkConfig  # with the settings of every training, but for its length and where its tokens are
    typed: tuple[str, ...]  # settings of minigpt train, as the user gave them

    @property
    def preset(self) -> Preset:
        """The preset, with the user's numbers of steps and tokens."""
        own, config = PRESETS[self.config.preset], self.config
        return replace(own, steps=config.steps or own.steps, new_tokens=config.new_tokens or own.new_tokens)

    @property
    def nanogpt(self) -> Path | None:
        """The checkout of nanoGPT."""
        return full_path(self.config.nanogpt) if self.config.nanogpt else None

    def training(self, tokens: Path, changes: Mapping[str, Any], steps: int = 0) -> dict[str, Any]:
        """The config of one training, as a plain dictionary.

        Args:
            tokens: the folder of the benchmark's tokens (see minigpt.benchmark.tokens).
            changes: settings that differ from the plan's.
            steps: optimizer steps of the run; 0: those of a measurement, one more than the gaps between them.
        """
        total = steps or self.preset.warm_up + self.preset.steps + 1
        shared = {key: value for key, value in values(self.config).items() if key in settings(TrainConfig)}
        given = {
            "data.name": "text",
            "data.source": str(tokens / "text.txt"),
            "data.dir": str(tokens / "data"),
            "tokenizer.name": "char" if self.preset.vocab_size < 256 else "byte",
            "schedule.warmup_steps": min(self.config.schedule.warmup_steps, total - 1),
            "trainer.max_steps": total,
        }
        return to_dict(from_dict(TrainConfig, {**shared, **given, **changes}))


def full_path(text: str) -> Path:
    """A path as it was typed, made absolute."""
    return Path(os.path.expanduser(text)).resolve()


def read_plans(arguments: list[str]) -> list[Plan]:
    """The benchmark that a command line describes, a plan for each size.

    Raises:
        UserFault: with every fault at once.
        SystemExit: code 0, after --help has printed.
    """
    arguments = arguments or ["--help"]
    given = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith("preset=")]
    faults, plans = refusals(arguments), []
    for preset in GPU if given[-1:] == ["gpu"] else given[-1:] or ["c0"]:
        sizes = PRESETS[preset].settings if preset in PRESETS else ()
        try:
            config = compose("benchmark", ["schedule.warmup_steps=10", *sizes, *arguments])
        except UserFault as fault:
            faults += fault.faults
            continue
        if config.preset == "gpu":
            config = replace(config, preset=preset, what=GPU[preset])
        if config.huggingface and importlib.util.find_spec("transformers") is None:
            faults.append(
                f"huggingface=true needs the Python package 'transformers', which {sys.executable} lacks and minigpt "
                f"itself never needs. Type: {sys.executable} -m pip install transformers"
            )
        plans.append(Plan(config, tuple(train_arguments("benchmark", arguments))))
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    return plans


def refusals(arguments: list[str]) -> list[str]:
    """The settings of minigpt train that can't be given here, a sentence each."""
    names = [argument.partition("=")[0] for argument in arguments]
    pairs = [(name, why) for name in names for start, why in TAKEN.items() if name.startswith(start)]
    return [f"{name} is the benchmark's own to give. Leave it out: {why}" for name, why in pairs]
