"""A split in pieces, or a sample of it: what is measured of a large text is measured of parts spread evenly over it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer

PIECE_TOKENS = 1 << 16


def pieces(split: TokenSplit, n_tokens: int, *, part: tuple[int, int] = (0, 1)) -> Iterator[NDArray[Any]]:
    """Return all tokens of a split in pieces; of more than n_tokens, about n_tokens in pieces spread evenly over it.

    Args:
        split: of tokens.
        n_tokens: at most.
        part: (i, n): only pieces i, i + n, i + 2 n ...
    """
    starts = np.arange(0, len(split), PIECE_TOKENS)
    if len(split) > n_tokens:
        starts = np.linspace(0, len(split) - PIECE_TOKENS, max(1, n_tokens // PIECE_TOKENS), dtype=np.int64)
    return (split.tokens(start, start + PIECE_TOKENS) for start in starts[part[0] :: part[1]].tolist())


def sample_of(split: TokenSplit, tokenizer: Tokenizer, n_bytes: int) -> bytes:
    """Return the text of a split; if it is longer than n_bytes, about n_bytes of it."""
    n_tokens = len(split) if split.bytes <= n_bytes else int(n_bytes / split.bytes * len(split))
    return b"".join(map(tokenizer.decode_bytes, pieces(split, n_tokens)))
