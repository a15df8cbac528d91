"""What measures a machine and a text for a budget: tokens of any vocabulary, a part of a text, a stopwatch."""

import math
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from minigpt.data.chat.packing import Split
from minigpt.data.prepared import Prepared
from minigpt.data.shards import ScoredWindows, TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.training.step import LanguageModel

WARM_UP_STEPS, STRETCHES = 2, 5
PART_TOKENS = 1 << 16  # at least, of the validation text that judges a pilot


def noise(vocab_size: int, least: int) -> Prepared:
    """Return at least so many random tokens of a vocabulary: a step takes as long with them as with a text."""
    tokenizer = build_tokenizer("byte")
    tokenizer.vocab_size = vocab_size
    tokens = np.random.default_rng(0).integers(vocab_size, size=2 * least, dtype=np.uint32)
    split = TokenSplit("train", tokenizer, [tokens], tokens.nbytes, "")
    return Prepared(Path(), tokenizer, split, split, "", {})


class Windows(TokenSplit):
    """Windows of block_size + 1 tokens from all over a split, one after the other; each is judged alone."""

    def scored_windows(self, block_size: int, batch: int, stride: int | None = None) -> Iterator[ScoredWindows]:
        """Yield all windows, (n, block_size + 1), block_size, and None: all predicted tokens count."""
        starts = np.arange(0, len(self), block_size + 1)
        for first in range(0, len(starts), batch):
            yield self.windows(starts[first : first + batch], block_size + 1), block_size, None

    def predicted(self, block_size: int, document_end: int | None = None) -> tuple[int, int]:
        """Return how many tokens are predicted, all but the first of each window, and the bytes that they stand for."""
        firsts = self.windows(np.arange(0, len(self), block_size + 1), 1)
        return len(self) - len(firsts), self.bytes - self.tokenizer.count_bytes(firsts)


def part_of(split: Split, block_size: int, n_tokens: int) -> Split:
    """Return a split; of one with more than n_tokens, windows spread evenly over it that hold about as many."""
    n_tokens, length = max(PART_TOKENS, n_tokens), block_size + 1
    if len(split) <= n_tokens:
        return split
    starts = np.linspace(0, len(split) - length, max(1, n_tokens // length), dtype=np.int64)
    tokens = split.windows(starts, length).ravel()
    return Windows("val", split.tokenizer, [tokens], split.tokenizer.count_bytes(tokens), "")


class Validations(L.Callback):
    """Keeps the bits per byte of each validation."""

    def __init__(self) -> None:
        self.bits: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at the result."""
        self.bits.append(float(trainer.callback_metrics.get("val/bits_per_byte", math.inf)))


class Stopwatch(L.Callback):
    """Ends a training after some seconds, and knows how many steps it makes in one; the first steps don't count.

    It is the median of STRETCHES parts of the time, so that a pause of the machine does not count.
    """

    def __init__(self, seconds: float):
        self.seconds, self.steps_per_second = seconds, 0.0
        self.marks: list[tuple[int, float]] = []  # steps made, and when

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Look at the time."""
        assert isinstance(pl_module, LanguageModel)
        step, now = pl_module.state.step, time.perf_counter()
        if step < WARM_UP_STEPS or (self.marks and step == self.marks[-1][0]):
            return
        self.marks.append((step, now))
        if len(self.marks) > 1 and now - self.marks[0][1] >= self.seconds:
            ends = self.marks[:: max(1, (len(self.marks) - 1) // STRETCHES)]
            self.steps_per_second = statistics.median((b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(ends))
            trainer.should_stop = True
