"""A byte n-gram model with modified Kneser-Ney smoothing: what counting alone predicts.

With h the k - 1 bytes before byte w, and h' the same without its oldest byte,

    P_k(w | h) = (max(0, c(h w) - D(c(h w))) + P_{k-1}(w | h') * sum_v D(c(h v))) / sum_v c(h v).

In the highest order c counts the training text; in the lower ones c(h w) is the number of different bytes that stand
before h w. The discounts D(1), D(2) and D(3 or more) of each order follow from how many grams have counts 1 to 4.
Below order 1 all 256 bytes are equally likely, and a context that was never seen leaves the lower order as it is.

Source: Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", sections 2.7 and 3.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDER = 7  # bytes of a gram: 6 of context, and the next one
FALLBACK = (0.5, 1.0, 1.5)  # discounts where too few counts are there to tell, as KenLM has them


@dataclass(frozen=True)
class _Table:
    """The grams of one order."""

    grams: NDArray[np.uint64]  # different ones, in order
    counts: NDArray[np.int32]
    discounts: NDArray[np.float64]  # for counts 0, 1, 2, 3 or more
    counts_before: NDArray[np.int64]  # sum of the counts of all grams before each, and of all
    discounts_before: NDArray[np.float64]


class KneserNey:
    """The model of a training text; `order` is the bytes of the longest gram, at most 8."""

    def __init__(self, train: bytes, order: int = ORDER):
        self._tables: list[_Table] = []
        grams, counts = _distinct(_grams(train, order))
        for length in range(order, 0, -1):
            self._tables.insert(0, _table(grams, counts))
            if length > 1:
                grams, counts = _distinct(_shorter(grams))

    def probabilities(self, text: bytes) -> NDArray[np.float64]:
        """Return P of each byte of `text` given those before it, (len(text),)."""
        grams = [_grams(text, len(self._tables))]
        for _ in self._tables[1:]:
            grams.insert(0, _shorter(grams[0]))
        order = np.argsort(grams[-1])  # neighbours are found in neighbouring memory, whatever the length
        p = np.full(len(text), 1 / 256)
        for table, of_length in zip(self._tables, grams, strict=True):
            p[order] = _interpolate(table, of_length[order], p[order])
        return p


def _interpolate(table: _Table, grams: NDArray[np.uint64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P of the table's order, from P of the order below it."""
    if not len(table.grams):
        return p
    place = np.minimum(np.searchsorted(table.grams, grams), len(table.grams) - 1)
    counts = np.where(table.grams[place] == grams, table.counts[place], 0)
    low = np.searchsorted(table.grams, grams & ~np.uint64(255))
    high = np.searchsorted(table.grams, grams | np.uint64(255), side="right")
    total = table.counts_before[high] - table.counts_before[low]
    left_over = table.discounts_before[high] - table.discounts_before[low]
    kept = counts - table.discounts[np.minimum(counts, 3)]
    return np.where(total > 0, (kept + left_over * p) / np.maximum(total, 1), p)


def _table(grams: NDArray[np.uint64], counts: NDArray[np.int32]) -> _Table:
    n = np.bincount(np.minimum(counts, 5), minlength=6)  # n[c]: grams that were counted c times
    discounts = np.array([0.0, *FALLBACK])
    if all(n[1:5]):
        y = n[1] / (n[1] + 2 * n[2])
        estimated = np.array([0.0, *(c - (c + 1) * y * n[c + 1] / n[c] for c in (1, 2, 3))])
        if all(0 < estimated[c] <= c for c in (1, 2, 3)):
            discounts = estimated
    sums = (np.concatenate([[0], np.cumsum(values)]) for values in (counts, discounts[np.minimum(counts, 3)]))
    return _Table(grams, counts, discounts, *sums)


def _distinct(grams: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return the distinct grams in order, and the count of each."""
    grams.sort()
    first = np.flatnonzero(np.diff(grams, prepend=~grams[:1]))
    return grams[first], np.diff(first, append=len(grams)).astype(np.int32)


def _grams(text: bytes, length: int) -> NDArray[np.uint64]:
    """Return each byte with the `length` - 1 before it, the newest of them highest; zeros precede the text."""
    data = np.frombuffer(bytes(length - 1) + text, dtype=np.uint8)
    grams = np.zeros(len(text), dtype=np.uint64)
    for place in [*range(length - 2, -1, -1), length - 1]:
        grams <<= np.uint64(8)
        grams |= data[place : place + len(grams)]
    return grams


def _shorter(grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return grams without their oldest byte."""
    return (grams >> np.uint64(8)) & ~np.uint64(255) | grams & np.uint64(255)
