"""The sizes that `minigpt benchmark` measures, and the text it makes for them. Torch is not imported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minigpt.config.command_line import train_arguments
from minigpt.config.commands import BenchmarkConfig
from minigpt.config.compose import compose
from minigpt.faults import UserFault


@dataclass(frozen=True)
class Preset:
    """A model size for which others publish figures, and the length of its measurements."""

    settings: tuple[str, ...]  # of minigpt train
    steps: int  # timed in each measurement
    vocab_size: int
    new_tokens: int  # written after each prompt


def _settings(n_layer: int, n_head: int, n_embd: int, block_size: int, batch: int, *more: str) -> tuple[str, ...]:
    return (
        f"model.n_layer={n_layer}", f"model.n_head={n_head}", f"model.n_embd={n_embd}",
        f"model.block_size={block_size}", f"batch_tokens={batch * block_size}", f"trainer.micro_batch={batch}",
        "model.bias=false", "model.activation=gelu", "model.dropout=0", "schedule.warmup_steps=10", *more,
    )  # fmt: skip


GPT2 = ("optimizer.lr=6e-4", "optimizer.beta2=0.95")
_124M = _settings(12, 12, 768, 1024, 32, *GPT2)
PRESETS = {
    "c0": Preset(_settings(4, 4, 128, 64, 12), steps=300, vocab_size=65, new_tokens=48),
    "c1": Preset(_settings(6, 6, 384, 256, 16), steps=40, vocab_size=65, new_tokens=240),
    "124m": Preset(_124M, steps=60, vocab_size=50257, new_tokens=64),
    "gpu": Preset((*_124M, "trainer.device=cuda"), steps=60, vocab_size=50257, new_tokens=64),
    "350m": Preset(_settings(24, 16, 1024, 1024, 16, *GPT2), steps=40, vocab_size=50257, new_tokens=64),
}
WARM_UP = 10  # optimizer steps at the beginning of each measurement that don't count
OF_TEXT = ("data", "tokenizer", "run.", "init", "experiment", "budget", "validate")
TAKEN = (*OF_TEXT, "trainer.max_", "trainer.epochs", "trainer.devices")


def read_benchmark(arguments: Sequence[str]) -> tuple[BenchmarkConfig, list[str]]:
    """Return the checked settings of a benchmark, and the words of `minigpt train` that all its trainings share."""
    if refused := [argument for argument in arguments if argument.startswith(TAKEN)]:
        wrong = f"{refused[0]}: a benchmark makes its text and trains in a temporary folder on one device"
        remedy = "Leave it out; preset=NAME chooses the size, steps=N the length"
        raise UserFault(f"{wrong}. {remedy}. benchmarks/scaling.py measures several devices")
    name = next((word.partition("=")[2] for word in reversed(arguments) if word.startswith("preset=")), "c0")
    settings = PRESETS.get(name, PRESETS["c0"]).settings
    config: BenchmarkConfig = compose("benchmark", [*settings, *arguments])
    return config, [*settings, *train_arguments("benchmark", list(arguments))]


def text_words(folder: Path, vocab_size: int) -> list[str]:
    """Write a text of `vocab_size` different characters, and return the words of `minigpt train` that read it.

    It is made from a seed: characters drawn by Zipf's law, each followed by the one that always follows it.
    """
    generator = np.random.default_rng(1)
    weights = 1.0 / np.arange(1, vocab_size + 1)
    drawn = generator.choice(vocab_size, 2_000_000, p=weights / weights.sum())
    pairs = np.stack([drawn, generator.permutation(vocab_size)[drawn]], axis=1)
    codes = np.concatenate([np.arange(vocab_size), pairs.reshape(-1)]) + ord("!")
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    (folder / "text.txt").write_text(text, encoding="utf-8")
    source_words = ["data=text", f"data.source={folder / 'text.txt'}", f"data.dir={folder / 'data'}", "tokenizer=char"]
    return [*source_words, "data.val_fraction=0.01", "validate.every_steps=0"]
