"""What measures a machine and a text for a budget: tokens of any vocabulary, a part of a text, a stopwatch."""

import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

from minigpt.data.chat.packing import Split
from minigpt.data.prepared import Prepared
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.training.step import LanguageModel

WARM_UP_STEPS = 2
PARTS, PART_TOKENS = 512, 128  # many small pieces: what differs between documents is averaged


def noise(vocab_size: int, least: int) -> Prepared:
    """Return at least so many random tokens of a vocabulary: a step takes as long with them as with a text."""
    tokenizer = build_tokenizer("byte")
    tokenizer.vocab_size = vocab_size
    tokens = np.random.default_rng(0).integers(vocab_size, size=2 * least, dtype=np.uint32)
    split = TokenSplit("train", tokenizer, [tokens], tokens.nbytes, "")
    return Prepared(Path(), tokenizer, split, split, "", {})


def part_of(split: Split) -> TokenSplit:
    """Return at most PARTS pieces of PART_TOKENS of a split, spread evenly over it."""
    length = min(PART_TOKENS, len(split))
    starts = np.unique(np.linspace(0, len(split) - length, min(PARTS, len(split) // length), dtype=np.int64))
    tokens = split.windows(starts, length).ravel()
    return TokenSplit("val", split.tokenizer, [tokens], split.tokenizer.count_bytes(tokens), "")


class Stopwatch(L.Callback):
    """Ends a training after some seconds, and knows how many steps it makes in one; the first steps don't count."""

    def __init__(self, seconds: float):
        self.seconds, self.steps_per_second = seconds, 0.0
        self.began: tuple[int, float] | None = None

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Look at the time."""
        assert isinstance(pl_module, LanguageModel)
        step, now = pl_module.state.step, time.perf_counter()
        if self.began is None:
            self.began = (step, now) if step >= WARM_UP_STEPS else None
        elif step > self.began[0] and now - self.began[1] >= self.seconds:
            self.steps_per_second = (step - self.began[0]) / (now - self.began[1])
            trainer.should_stop = True
