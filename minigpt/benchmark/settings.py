"""What a benchmark measures: from its command line to a checked plan. Torch is not imported."""

import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from minigpt.config.commands import BenchmarkConfig
from minigpt.config.compose import compose, train_arguments
from minigpt.faults import UserFault


@dataclass(frozen=True)
class Preset:
    """A model size that others publish figures of, and how long a measurement of it lasts."""

    settings: tuple[str, ...]  # of minigpt train
    steps: int  # timed in each measurement
    vocab_size: int
    new_tokens: int  # written after each prompt when sampling


def _sizes(n_layer: int, n_head: int, n_embd: int, block_size: int, batch: int) -> tuple[str, ...]:
    return (
        f"model.n_layer={n_layer}", f"model.n_head={n_head}", f"model.n_embd={n_embd}",
        f"model.block_size={block_size}", f"batch_tokens={batch * block_size}", f"trainer.micro_batch={batch}",
        "model.bias=false", "model.activation=gelu", "model.dropout=0", "schedule.warmup_steps=10",
    )  # fmt: skip


GPT2 = ("optimizer.lr=6e-4", "optimizer.beta2=0.95")
PRESETS = {
    "c0": Preset(_sizes(4, 4, 128, 64, 12), steps=300, vocab_size=65, new_tokens=48),
    "c1": Preset(_sizes(6, 6, 384, 256, 16), steps=40, vocab_size=65, new_tokens=240),
    "124m": Preset((*_sizes(12, 12, 768, 1024, 32), *GPT2), steps=60, vocab_size=50257, new_tokens=64),
    "350m": Preset((*_sizes(24, 16, 1024, 1024, 16), *GPT2), steps=40, vocab_size=50257, new_tokens=64),
}
GPU = {"124m": "training,variants,resuming,sampling", "350m": "training"}  # what preset=gpu measures
WARM_UP = 10  # optimizer steps at the beginning of each measurement that don't count

# How a setting of minigpt train begins that the benchmark gives itself.
TAKEN = ("data", "tokenizer", "run", "init", "experiment", "validate", "trainer.max_", "trainer.devices", "trainer.str")


@dataclass(frozen=True)
class Plan:
    """The benchmark of one size, checked."""

    config: BenchmarkConfig  # with the preset's numbers where the user gave none, and absolute paths
    vocab_size: int
    settings: tuple[str, ...]  # of minigpt train: the preset's, then those that the user typed


def read_plans(arguments: list[str]) -> list[Plan]:
    """The benchmark that a command line describes, a plan for each size.

    Raises:
        UserFault: with every fault at once.
        SystemExit: code 0, after --help has printed.
    """
    arguments = arguments or ["--help"]
    given = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith("preset=")]
    faults = [
        f"{argument.partition('=')[0]} is the benchmark's own to give: it makes its own text, and runs in a temporary "
        "folder on one device. Leave it out; preset=NAME gives the size, steps=N the length"
        for argument in arguments
        if argument.startswith(TAKEN)
    ]
    plans = []
    for name in GPU if given[-1:] == ["gpu"] else given[-1:] or ["c0"]:
        preset = PRESETS.get(name, PRESETS["c0"])
        try:
            config = compose("benchmark", [*preset.settings, *arguments])
        except UserFault as fault:
            faults += fault.faults
            continue
        if config.huggingface and importlib.util.find_spec("transformers") is None:
            faults.append(f"huggingface=true needs transformers. Type: {sys.executable} -m pip install transformers")
        everything = config.preset == "gpu"
        config = replace(
            config,
            preset=name,
            what=GPU[name] if everything else config.what,
            steps=config.steps or preset.steps,
            new_tokens=config.new_tokens or preset.new_tokens,
            nanogpt=_full_path(config.nanogpt),
            write_to=_full_path(config.write_to or ("." if everything else None)),
        )
        settings = (*preset.settings, *train_arguments("benchmark", arguments))
        plans.append(Plan(config, preset.vocab_size, settings))
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    return plans


def _full_path(text: str | None) -> str | None:
    return str(Path(os.path.expanduser(text)).resolve()) if text else None
