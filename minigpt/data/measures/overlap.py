"""Statistics of a split, and how much of the validation text also stands in the training text.

Deduplication finds equal documents; this finds equal passages. A gram is 13 tokens in a row (50 where a token is
hardly more than a character), none of them end-of-text. Its hash is a difference of two sums, so that the grams of a
text cost a few passes over it, however long they are.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.measures.pieces import PIECE_TOKENS, pieces
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.ranks.cores import usable_cores
from minigpt.splitmix import GOLDEN, scramble

GRAM_TOKENS = 13
GRAM_CHARACTERS = 50  # of tokens of less than two bytes
TRAIN_TOKENS = 1 << 26  # looked at, at most
VAL_TOKENS = 1 << 21
_FILTER_BITS = 26  # of a hash, at most: a gram whose place in the filter is free is not in the validation text


def measure(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what is measured of the tokens in a folder: the statistics of train and val, and their overlap."""
    train, val = (TokenSplit(folder, name, tokenizer=tokenizer) for name in ("train", "val"))
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:  # NumPy lets others compute meanwhile
        counting = [thread.submit(statistics, split, tokenizer, stop) for split in (train, val)]
        try:
            shared = overlap(train, val, tokenizer)
            return {"train": counting[0].result(), "val": counting[1].result(), "overlap": shared}
        finally:
            stop.set()  # by Ctrl-C


def measured_lines(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was measured, as a name and a sentence; the summaries of older tokens lack it."""
    for name, split in (("train", summary["train"]), ("validation", summary["val"])):
        if "documents" in split:
            sizes = f"the median one {split['median']:,} tokens, the longest {split['longest']:,}"
            used = f"{split['distinct_tokens']:,} different tokens"
            yield name, f"{split['documents']:,} documents, {sizes}; {used}"
    found = summary.get("overlap", {})
    if found.get("share") is not None:
        looked_at = {"training": found["of_train"], "validation": found["of_val"]}
        parts = " and ".join(f"{part:.0%} of the {name} text" for name, part in looked_at.items() if part < 1)
        what = f"of the validation text's {found['gram']}-token sequences stand in the training text, too"
        yield "overlap", f"{found['share']:.1%} {what}" + (f" ({parts} looked at)" if parts else "")


def statistics(split: TokenSplit, tokenizer: Tokenizer, stop: threading.Event) -> dict[str, int]:
    """Return how many documents a split has, the tokens of the median and of the longest, and how many tokens it uses.

    Without an end-of-text token documents are not known. If `stop` is set, the rest of the split is not counted.
    """
    used, last, lengths = np.zeros(tokenizer.vocab_size, bool), -1, [np.zeros(0, np.int64)]
    for number, piece in enumerate(until(stop, pieces(split, len(split)))):
        used[piece] = True
        if tokenizer.eot is not None:
            ends = number * PIECE_TOKENS + np.flatnonzero(piece == tokenizer.eot)
            lengths.append(np.diff(ends, prepend=last) - 1)
            last = int(ends[-1]) if len(ends) else last
    found = {"distinct_tokens": int(used.sum())}
    if tokenizer.eot is None:
        return found
    sizes = np.concatenate([*lengths, [len(split) - last - 1]])
    sizes = sizes[sizes > 0] if sizes.any() else sizes[:1]
    return {"documents": len(sizes), "median": int(np.median(sizes)), "longest": int(sizes.max())} | found


def overlap(train: TokenSplit, val: TokenSplit, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the share of the validation text's grams that stand in the training text.

    Returns:
        share (0 to 1; None without a gram), gram (tokens), of_train and of_val (the parts of the splits looked at).
    """
    gram = GRAM_TOKENS if val.bytes >= 2 * len(val) else GRAM_CHARACTERS
    words = scramble(np.arange(tokenizer.vocab_size, dtype=np.uint64))
    all_of_val = np.concatenate([_hashes(piece, gram, words, tokenizer.eot) for piece in pieces(val, VAL_TOKENS)])
    wanted, counts = np.unique(all_of_val, return_counts=True)
    bits = min(_FILTER_BITS, len(wanted).bit_length() + 5)  # 32 places and more for each gram
    shift = np.uint64(64 - bits)
    found, may_be = np.zeros(len(wanted), bool), np.zeros(1 << bits, bool)
    may_be[wanted >> shift] = True

    ended = threading.Event()

    def likely(piece: NDArray[Any]) -> NDArray[np.uint64]:
        hashes = _hashes(piece, gram, words, tokenizer.eot)
        return hashes[may_be.take((hashes >> shift).view(np.int64), mode="clip")]

    def look(part: tuple[int, int]) -> None:
        parts = until(ended, pieces(train, TRAIN_TOKENS, part=part))
        while group := [likely(piece) for piece in itertools.islice(parts, 16)]:
            hashes = np.sort(np.concatenate(group))  # in order they are found five times as fast
            at = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
            found[at[wanted[at] == hashes]] = True  # from several threads: each sets only what it found

    if len(wanted):
        count = usable_cores()
        with ThreadPoolExecutor(count) as threads:  # NumPy lets others compute meanwhile
            try:
                list(threads.map(look, [(number, count) for number in range(count)]))
            finally:
                ended.set()  # by Ctrl-C
    share = float(counts[found].sum() / counts.sum()) if len(wanted) else None
    looked_at = {"of_train": min(1.0, TRAIN_TOKENS / len(train)), "of_val": min(1.0, VAL_TOKENS / len(val))}
    return {"share": share, "gram": gram, **looked_at}


def until(stop: threading.Event, parts: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield parts of a split until `stop` is set."""
    return itertools.takewhile(lambda _: not stop.is_set(), parts)


def _powers(base: int) -> NDArray[np.uint64]:
    return np.cumprod(np.full(PIECE_TOKENS, base, np.uint64), dtype=np.uint64)


_UP, _DOWN = _powers(GOLDEN), _powers(pow(GOLDEN, -1, 1 << 64))  # GOLDEN is odd: it has an inverse modulo 2**64


def _hashes(tokens: NDArray[Any], gram: int, words: NDArray[np.uint64], eot: int | None) -> NDArray[np.uint64]:
    """Return a hash of each gram without end-of-text, from `words`, a random number for each token."""
    n = len(tokens)
    if n < gram:
        return np.zeros(0, np.uint64)
    sums = np.zeros(n + 1, np.uint64)
    np.cumsum(words.take(tokens, mode="clip") * _UP[:n], out=sums[1:])
    hashes = (sums[gram:] - sums[:-gram]) * _DOWN[: n - gram + 1]
    ends = np.flatnonzero(tokens == eot) if eot is not None else np.zeros(0, np.int64)
    if not len(ends):
        return hashes
    keep = np.ones(n, bool)
    keep[np.maximum(ends[:, None] - np.arange(gram), 0)] = False  # the grams that begin there hold one
    return hashes[keep[: len(hashes)]]
