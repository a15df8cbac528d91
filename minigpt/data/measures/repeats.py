"""What a pointer to the last occurrence of the same bytes saves of an n-gram model's bits.

It predicts the byte that followed the longest of LENGTHS within the last WINDOW bytes, as a GPT's induction heads do:
P = c [byte = predicted] + (1 - c) P_ngram, with the best c for each length.
Source: Merity et al. 2016, "Pointer Sentinel Mixture Models".
"""

import numpy as np
from numpy.typing import NDArray

WINDOW = 1024  # bytes: a context of some 300 tokens
LENGTHS = (4, 8, 16, 32)  # of the bytes that recur
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, without a pattern in its bits
_ROUNDS = 20  # of expectation maximization, which then changes c by less than 1 %


def saved_by_copying(text: bytes, p: NDArray[np.float64]) -> float:
    """Return the share of an n-gram model's bits that the pointer saves; `p` is its P of each byte, (len(text),)."""
    data = np.frombuffer(text, dtype=np.uint8)
    longest, is_right = np.zeros(len(data), dtype=np.uint8), np.zeros(len(data), dtype=bool)
    hashes, length = data.astype(np.uint64) + np.uint64(1), 1  # of the `length` bytes from each place on
    while 2 * length <= min(LENGTHS[-1], len(data)):
        hashes, length = hashes[:-length] * _FACTOR + hashes[length:], 2 * length
        if length in LENGTHS:
            order = np.argsort(hashes, kind="stable")
            recurs = hashes[order[1:]] == hashes[order[:-1]]
            before, now = order[:-1][recurs] + length, order[1:][recurs] + length
            near = (now - before <= WINDOW) & (now < len(data))
            before, now = before[near], now[near]
            longest[now], is_right[now] = length, data[before] == data[now]
    saved = sum(_saved(p[longest == length], is_right[longest == length]) for length in LENGTHS)
    return saved / float(-np.log2(p).sum())


def _saved(p: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:  # where the pointer has one length
    if not is_right.any():
        return 0.0
    c = 0.5
    for _ in range(_ROUNDS):
        c = min(0.999, float(np.where(is_right, c / (c + (1 - c) * p), 0.0).mean()))
    return float(np.log2(np.where(is_right, c / p, 0.0) + 1 - c).sum())
