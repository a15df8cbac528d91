"""How much of the validation text also occurs in the training text.

Deduplication finds equal documents; this finds equal passages. A gram is 13 tokens in a row (50 where a token is
hardly more than a character), none of them end-of-text. Of a large split, pieces spread evenly over it are looked at.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.chat.packing import Split
from minigpt.machine.cores import usable_cores
from minigpt.seeds import GOLDEN, scramble

GRAM_TOKENS = 13
GRAM_CHARACTERS = 50  # of tokens of less than two bytes
TRAIN_TOKENS = 1 << 26  # looked at, at most
VAL_TOKENS = 1 << 21
TOO_MUCH = 0.2  # of the validation text in the training text: its loss no longer tells how a model does on new text
_PIECE_TOKENS = 1 << 16
_FILTER_BITS = 26  # of a hash, at most


def pieces(split: Split, n_tokens: int) -> Iterator[NDArray[Any]]:
    """Return all tokens of a split in pieces; of more than n_tokens, about n_tokens in pieces spread evenly over it."""
    starts = np.arange(0, len(split), _PIECE_TOKENS)
    if len(split) > n_tokens:
        starts = np.linspace(0, len(split) - _PIECE_TOKENS, max(1, n_tokens // _PIECE_TOKENS), dtype=np.int64)
    return (split.tokens(start, start + _PIECE_TOKENS) for start in starts.tolist())


def overlap_lines(summary: dict[str, Any]) -> Iterator[str]:
    """Yield what was measured in sentences."""
    shared = summary.get("overlap", {})
    if shared.get("share") is not None:
        looked_at = {"training": shared["of_train"], "validation": shared["of_val"]}
        parts = " and ".join(f"{part:.0%} of the {name} text" for name, part in looked_at.items() if part < 1)
        what = f"of the validation text's {shared['gram']}-token sequences occur in the training text, too"
        yield f"{shared['share']:.1%} {what}" + (f" ({parts} looked at)" if parts else "")
        if warning := overlap_warning(summary):
            yield warning


def overlap_warning(summary: dict[str, Any]) -> str | None:
    """Return a sentence if so much of the validation text was trained on that its loss says little."""
    share = summary.get("overlap", {}).get("share") or 0.0
    if share <= TOO_MUCH:
        return None
    wrong = f"the validation loss is too good to be true: {share:.0%} of that text occurs in the training text, too"
    return f"{wrong}. Remove the copies" + ", or validate on another text: data.val_source=FILE" * ("corpus" in summary)


def overlap(train: Split, val: Split) -> dict[str, Any]:
    """Return the share of the validation text's grams that occur in the training text: of a mixture, in any source.

    Returns:
        share (0 to 1; None without a gram), gram (tokens), of_train and of_val (the parts of the splits looked at).
    """
    gram, eot = GRAM_TOKENS if val.bytes >= 2 * len(val) else GRAM_CHARACTERS, val.tokenizer.eot
    grams = [np.zeros(0, np.uint64), *(_hashes(piece, gram, eot) for piece in pieces(val, VAL_TOKENS))]
    wanted, counts = np.unique(np.concatenate(grams), return_counts=True)
    shift = np.uint64(64 - min(_FILTER_BITS, len(wanted).bit_length() + 5))
    is_known, may_be = np.zeros(len(wanted), bool), np.zeros(1 << (64 - int(shift)), bool)
    may_be[wanted >> shift] = True  # a table of first bits tells most hashes apart, without a search

    def mark_known(piece: NDArray[Any]) -> None:
        hashes = _hashes(piece, gram, eot)
        hashes = np.sort(hashes[may_be[hashes >> shift]])  # in order they are found five times as fast
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        is_known[places[wanted[places] == hashes]] = True

    with ThreadPoolExecutor(usable_cores()) as threads:  # NumPy lets others compute meanwhile
        list(threads.map(mark_known, pieces(train, TRAIN_TOKENS) if len(wanted) else ()))
    share = float(counts[is_known].sum() / counts.sum()) if len(wanted) else None
    looked_at = {"of_train": min(1.0, TRAIN_TOKENS / len(train)), "of_val": min(1.0, VAL_TOKENS / len(val))}
    return {"share": share, "gram": gram, **looked_at}


def _hashes(tokens: NDArray[Any], gram: int, eot: int | None) -> NDArray[np.uint64]:
    """Return a hash of each gram without end-of-text: a polynomial of random numbers for its tokens."""
    n = max(0, len(tokens) - gram + 1)
    words, hashes = scramble(tokens.astype(np.uint64)), np.zeros(n, np.uint64)
    holds_eot = np.zeros(n, bool)
    for place in range(gram):
        hashes *= np.uint64(GOLDEN)
        hashes += words[place : place + n]
        if eot is not None:
            holds_eot |= tokens[place : place + n] == eot
    return hashes[~holds_eot]
