"""tokenizer.dropout: BPE-dropout. In training, words are encoded with some merges left out, differently at each place.

A small text that is seen many times then has many forms, and is learned by heart more slowly.
Source: Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization", algorithm 1.
"""

import functools
import itertools
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.tokenizer import Tokenizer
from minigpt.seeds import GOLDEN, fold, scramble

FIRST_PART = 0.7  # of a run's steps; the last ones learn the encoding that samples and validation have
VARIANTS = 16  # of the encoding of a word
MOST_TOKENS = 8  # of a word: a run of text without blanks is cut
CACHED = 2**18  # variants


class BPEDropout:
    """Encodes windows of training tokens anew, as a pure function of the seed and of their places in the text.

    Args:
        tokenizer: bpe or gpt2, whose token ids are the ranks of the merges.
        rate: probability that a merge is left out.
        seed: of the data order.
        steps: of the run.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int, steps: int):
        self.rate, self.seed, self.steps = rate, seed, round(FIRST_PART * steps)
        self.contents = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.ranks = {content: token for token, content in enumerate(self.contents) if content}
        self.begins_word = np.array([content[:1].isspace() or not content for content in self.contents])
        self.variant = functools.lru_cache(CACHED)(self._variant)

    def __call__(self, step: int, windows: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return windows (n, length) that begin with the same text; they end sooner in it, as they hold more tokens."""
        if step >= self.steps:
            return windows
        rows = [self._row(row, start) for row, start in zip(windows, starts.tolist(), strict=True)]
        return np.array(rows, dtype=np.int64)

    def _row(self, row: NDArray[np.int64], start: int) -> Any:
        places = np.flatnonzero(self.begins_word[row] | (np.arange(len(row)) % MOST_TOKENS == 0))
        tokens = tuple(row.tolist())
        words = [tokens[begin:end] for begin, end in itertools.pairwise([*places.tolist(), len(row)])]
        numbers = np.arange(len(words), dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(fold(self.seed, start))
        new = list(itertools.chain.from_iterable(map(self.variant, words, (scramble(numbers) % VARIANTS).tolist())))
        return new[: len(row)] if len(new) >= len(row) else row  # fewer tokens are possible, but rare

    def _variant(self, word: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Return the tokens of a word, or of a control token and a word, encoded with some merges left out."""
        control, content = word[: not self.contents[word[0]]], b"".join(map(self.contents.__getitem__, word))
        drawn = random.Random(content + bytes([number])).random
        parts = [content[place : place + 1] for place in range(len(content))]
        while merges := [
            (self.ranks[left + right], place)
            for place, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in self.ranks and drawn() >= self.rate
        ]:
            place = min(merges)[1]
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return control + tuple(map(self.ranks.__getitem__, parts))
