"""The baseline: how well a byte n-gram model predicts the validation text, in bits per byte.

A neural model that doesn't beat it has learned nothing but local statistics. Counts of the training text are
smoothed by interpolated Witten-Bell: a context hands the lower order as much weight as it has seen different
bytes follow it,

    P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h)),

with c counts, T(h) the number of different bytes seen after h, and h' the context h without its oldest byte; below
the empty context, all 256 bytes are equally likely. Source: Chen and Goodman 1998, "An Empirical Study of Smoothing
Techniques for Language Modeling", section 2.6.
"""

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 20  # bytes of validation text scored at a time


def ngram_bits_per_byte(train: bytes, val: bytes, order: int = 3) -> float:
    """Return the bits per byte of `val` under a model of `train` whose contexts are up to `order` bytes long.

    At the start of `val` the contexts are as long as the bytes before them.

    Args:
        train: text to count.
        val: text to predict.
        order: 0 to 3 bytes of context; a context and its next byte fit 32 bits.

    Raises:
        ValueError: no text to predict, or an order outside 0 ... 3.
    """
    if not val:
        raise ValueError("ngram_bits_per_byte: got no bytes to predict; wanted at least one")
    if not 0 <= order <= 3:
        raise ValueError(f"ngram_bits_per_byte: got order={order}; wanted 0 to 3")
    tables = [_table(train, length) for length in range(order + 1)]
    bits = 0.0
    for start in range(0, len(val), _PIECE):
        before = min(start, order)
        probabilities = _probabilities(tables, val[start - before : start + _PIECE])
        bits -= float(np.log2(probabilities[before:]).sum())
    return bits / len(val)


def _table(train: bytes, length: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Different grams of `length` context bytes and the byte after them, in order, and their counts."""
    grams = np.sort(_grams(train, length))
    first = np.flatnonzero(np.diff(grams, prepend=~grams[:1]))
    return grams[first], np.diff(first, append=len(grams))


def _grams(text: bytes, length: int) -> NDArray[np.uint32]:
    """Each byte that has `length` bytes before it, with them, as one number: oldest byte highest."""
    data = np.frombuffer(text, dtype=np.uint8)
    grams = np.zeros(max(0, len(data) - length), dtype=np.uint32)
    for place in range(length + 1):
        grams = (grams << np.uint32(8)) | data[place : place + len(grams)]
    return grams


def _probabilities(tables: list[tuple[NDArray[np.uint32], NDArray[np.int64]]], text: bytes) -> NDArray[np.float64]:
    """P of each byte of `text` given those before it, (len(text),)."""
    p = np.full(len(text), 1 / 256)
    for length, (seen, counts) in enumerate(tables):
        grams = _grams(text, length)
        total = np.concatenate([[0], np.cumsum(counts)])
        place = np.minimum(np.searchsorted(seen, grams), max(0, len(seen) - 1))
        count = np.where(seen[place] == grams, counts[place], 0) if len(seen) else np.zeros(len(grams))
        low = np.searchsorted(seen, grams & ~np.uint32(255))
        high = np.searchsorted(seen, grams | np.uint32(255), side="right")
        kinds = high - low
        weight = np.maximum(total[high] - total[low] + kinds, 1)  # an unseen context leaves the lower order as it is
        p[length:] = np.where(kinds > 0, (count + kinds * p[length:]) / weight, p[length:])
    return p
