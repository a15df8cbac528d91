"""Which windows make batch t: a pure function of (seed, t), so there is no position to save or restore.

An epoch is a grid: W windows of block_size tokens side by side (each also reads one token more, the
last target), the whole grid shifted by an offset that is drawn per epoch. W is the same for every
offset, so sample number i of the run is window i % W of epoch i // W, and batch t holds the samples
t * sequences ... (t + 1) * sequences - 1, across epoch ends. A cipher on 0 ... W - 1 maps a window number
to a place of the grid. It is a shuffle that needs no table, so a batch costs the same time and memory at
step 0 and at step 10**9, in a corpus of any size.

A mixture of sources deals the samples of the run out to them: a cycle of 65,536 samples holds whole numbers of each
source's, spread evenly, and the k-th sample of a source is sample number k of its own order as above.

All arithmetic is uint64 that wraps around, so the order is the same on every platform.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.seeds import GOLDEN, MASK_64, scramble

CYCLE = 1 << 16  # samples in which a mixture comes out even
_ROUNDS = 6
OFFSET, CIPHER = 1, 2  # purposes of random words


def epoch_windows(n_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Return W, the number of windows per epoch: as many as fit at every offset, at least 1."""
    return np.maximum(1, n_tokens // block_size - 1)


def samples_of_step(step: int, sequences: int) -> NDArray[np.uint64]:
    """Return the numbers of a batch's samples on all devices and in all micro-batches, (sequences,)."""
    return np.uint64(step * sequences) + np.arange(sequences, dtype=np.uint64)


def starts_of(
    samples: NDArray[np.uint64], *, seed: NDArray[np.uint64], n_tokens: NDArray[np.int64], block_size: int
) -> NDArray[np.int64]:
    """Return where the windows of some samples begin, (n,): the places of their first tokens.

    Each has a seed, (n,), and begins in a split of n_tokens, (n,): start + block_size + 1 <= n_tokens holds.
    """
    n_windows = epoch_windows(n_tokens, block_size)
    offset_ranges = np.minimum(block_size, n_tokens - n_windows * block_size).astype(np.uint64)
    W = n_windows.astype(np.uint64)
    epochs, places = np.divmod(samples, W)
    offsets = random_words(seed, epochs, OFFSET) % offset_ranges
    windows = permute(places, W, random_words(seed, epochs, CIPHER))
    return (offsets + windows * np.uint64(block_size)).astype(np.int64)


def quotas(weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many of CYCLE samples each source has: whole numbers close to its share, whose sum is CYCLE.

    Source: Hamilton's method of largest remainders.
    """
    exact = [CYCLE * weight / math.fsum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda source: whole[source] - exact[source])
    for source in by_remainder[: CYCLE - sum(whole)]:
        whole[source] += 1
    return tuple(whole)


def deal(samples: NDArray[np.uint64], quotas: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Deal samples out to sources.

    After any number of samples each source has had its share of them, to within one sample for each other source.

    Args:
        samples: their numbers in the run, (n,).
        quotas: samples of each source in a cycle (see `quotas`).

    Returns:
        The source of each sample, and the sample's number among those of its source; (n,) each.
    """
    source, rank = _cycle(quotas)
    cycles, places = np.divmod(samples, np.uint64(CYCLE))
    sources = source[places]
    return sources, cycles * np.array(quotas, dtype=np.uint64)[sources] + rank[places]


@functools.lru_cache(maxsize=8)
def _cycle(quotas: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return each place's source and how many earlier places it has in a cycle: sample k of q is at (k + 1/2) / q."""
    source = np.repeat(np.arange(len(quotas)), quotas)
    rank = np.concatenate([np.arange(quota, dtype=np.uint64) for quota in quotas])
    order = np.argsort((rank + 0.5) / np.array(quotas)[source], kind="stable")
    return source[order], rank[order]


def random_words(seed: NDArray[np.uint64], epochs: NDArray[np.uint64], purpose: int) -> NDArray[np.uint64]:
    """Return one random word (64 bits) for each seed and epoch."""
    start = (seed * np.uint64(4) + np.uint64(purpose)) * np.uint64(GOLDEN)
    return scramble(scramble(start) + epochs * np.uint64(GOLDEN))


def permute(places: NDArray[np.uint64], W: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return where each place goes in a permutation of 0 ... W - 1; each key gives a permutation of its own.

    A Feistel network on pairs (left, right) with a * b >= W, then cycle walking: a result outside
    the domain is enciphered again, which is rare since a * b - W < a ~ sqrt(W).
    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains".
    """
    a = np.sqrt(W - 1).astype(np.uint64) + np.uint64(1)
    sizes = np.array([a, (W + a - np.uint64(1)) // a])  # (2, n)
    out = _encipher(places, sizes, keys)
    outside = np.flatnonzero(out >= W)
    while outside.size:
        out[outside] = _encipher(out[outside], sizes[:, outside], keys[outside])
        outside = outside[out[outside] >= W[outside]]
    return out


def _encipher(places: NDArray[np.uint64], sizes: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    right, left = np.divmod(places, sizes[0])  # left < sizes[0], right < sizes[1]
    for number in range(_ROUNDS):
        key = keys + np.uint64((number + 1) * GOLDEN & MASK_64)
        if number % 2 == 0:
            left = (left + scramble(key ^ right) % sizes[0]) % sizes[0]
        else:
            right = (right + scramble(key ^ left) % sizes[1]) % sizes[1]
    return right * sizes[0] + left


def batch_of_step(step: int, skipped_batches: Sequence[Sequence[int]]) -> int:
    """Return the number of the batch that a step trains on: the step-th batch that is not skipped.

    `skipped_batches` holds (first, last) batch numbers of each window, both included.
    """
    batch, left_out = step, -1  # the last batch that the windows so far leave out: they may overlap
    for first, last in sorted(skipped_batches, key=tuple):
        if batch >= first:
            batch += max(0, last - max(first - 1, left_out))
        left_out = max(left_out, last)
    return batch
