"""What measures a machine and a text for a budget: tokens of any vocabulary, a part of a text, a stopwatch."""

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from minigpt.data.chat.packing import Split
from minigpt.data.prepared import Prepared
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.training.step import LanguageModel

WARM_UP_STEPS, STRETCHES = 2, 5
PART_TOKENS, PIECE_TOKENS = 1 << 16, 128  # many small pieces: what differs between documents is averaged


def noise(vocab_size: int, least: int) -> Prepared:
    """Return at least so many random tokens of a vocabulary: a step takes as long with them as with a text."""
    tokenizer = build_tokenizer("byte")
    tokenizer.vocab_size = vocab_size
    tokens = np.random.default_rng(0).integers(vocab_size, size=2 * least, dtype=np.uint32)
    split = TokenSplit("train", tokenizer, [tokens], tokens.nbytes, "")
    return Prepared(Path(), tokenizer, split, split, "", {})


def part_of(split: Split, context: int) -> TokenSplit:
    """Return about PART_TOKENS of a split at most, in pieces spread evenly over it that fill a context."""
    length = min(max(PIECE_TOKENS, context), len(split))
    parts = min(max(1, PART_TOKENS // length), len(split) // length)
    starts = np.unique(np.linspace(0, len(split) - length, parts, dtype=np.int64))
    tokens = split.windows(starts, length).ravel()
    return TokenSplit("val", split.tokenizer, [tokens], split.tokenizer.count_bytes(tokens), "")


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
