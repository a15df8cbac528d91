"""A text made on the spot: seeded, with something to learn in it, the same for every contender."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COUNTS = {65: 1_100_000, 50257: 4_000_000}  # characters by vocabulary; 1.1 million are Tiny Shakespeare's
FIRST = ord("!")  # the first token's character: 50,257 from here on are valid Unicode


def made_tokens(count: int, vocab_size: int, *, seed: int = 1) -> NDArray[np.int64]:
    """Return token ids: each once, then pairs of a token drawn by Zipf's law and the one that always follows it."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, vocab_size + 1)
    drawn = generator.choice(vocab_size, count // 2, p=weights / weights.sum())
    pairs = np.stack([drawn, generator.permutation(vocab_size)[drawn]], axis=1)
    return np.concatenate([np.arange(vocab_size), pairs.reshape(-1)])


def write_text(path: Path, vocab_size: int) -> None:
    """Write a text of `vocab_size` different characters: with tokenizer=char each is a token."""
    codes = made_tokens(COUNTS[vocab_size], vocab_size) + FIRST
    path.write_bytes(codes.astype("<u4").tobytes().decode("utf-32-le").encode())
