"""Conversations in windows: whole ones side by side, each once an epoch, and which of their tokens are learned.

A window begins with a conversation and holds as many whole ones as fit. The rest of it, where the next one begins, has
no weight: that one is learned in its own window. A conversation longer than a window is learned up to the window's end.
"""

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.chat.roles import learned
from minigpt.data.order import CIPHER, permute, random_words, samples_of_step
from minigpt.data.shards import ScoredWindows, TokenSplit
from minigpt.faults import UserFault

EXAMPLES, MAX_SHOWN = 2, 600


class ConversationSplit:
    """One split of conversations, held in memory: what a `TokenSplit` is for text. `len()` counts tokens.

    Args:
        split: their tokens, <|endoftext|> between two conversations; its tokenizer has the control tokens of the roles.

    Attributes:
        bytes: of the texts, and one for each control token.
        answers: (n,) bool: the tokens that the assistant wrote.
    """

    def __init__(self, split: TokenSplit):
        self.name, self.bytes, self.fingerprint = split.name, split.bytes, split.fingerprint
        assert split.tokenizer.eot is not None, "config/rules asks for one"
        self.tokenizer, self.eot = split.tokenizer, split.tokenizer.eot
        self.parts, self.shares = {self.name: self}, {self.name: 1.0}
        self._tokens = split.tokens(0, len(split))
        self.answers = learned(self._tokens, self.tokenizer)
        ends = np.flatnonzero(self._tokens == self.eot) + 1
        self._begins = np.concatenate([[0], ends, [len(self._tokens) + 1]])  # the last: where one more would begin
        self.packs = lru_cache(maxsize=4)(self._packs)
        if not self.answers.any():
            raise UserFault(f"the {self.name} split holds no answer to learn. Use more conversations")

    def __len__(self) -> int:
        return len(self._tokens)

    def _packs(self, block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the windows begin, (W,), and where the learned part of each ends, (W,)."""
        starts, ends, begins, number = [], [], self._begins, 0
        while number < len(begins) - 1:
            start = begins[number]
            # The last <|end|> is followed by an <|endoftext|>, which need not fit.
            number = max(number + 1, int(np.searchsorted(begins, start + block_size + 2, side="right")) - 1)
            starts.append(start)
            ends.append(min(begins[number] - 1, start + block_size + 1))
        return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)

    def window_starts(self, step: int, *, seed: int, block_size: int, sequences: int) -> NDArray[np.int64]:
        """Return where the windows of batch `step` begin: each window once an epoch, in an order drawn for it."""
        starts, _ = self.packs(block_size)
        epochs, places = np.divmod(samples_of_step(step, sequences), np.uint64(len(starts)))
        keys = random_words(np.full_like(epochs, seed), epochs, CIPHER)
        return starts[permute(places, np.full_like(places, len(starts)), keys).astype(np.int64)]

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return windows as `TokenSplit.windows` does; positions after the end of the split are <|endoftext|>."""
        places = starts[:, None] + np.arange(length)
        inside = self._tokens[np.minimum(places, len(self) - 1)]
        return np.where(places < len(self), inside, self.eot).astype(np.int64)

    def weights(self, starts: NDArray[np.int64], length: int) -> NDArray[np.float32]:
        """Return 1 for each target (n, length) that is learned, else 0.

        `starts` (n,) are the windows' first targets, that is their second tokens; `length` is block_size.
        """
        begins, ends = self.packs(length)
        ends = ends[np.searchsorted(begins, starts - 1)]
        places = starts[:, None] + np.arange(length)
        return (self.answers[np.minimum(places, len(self) - 1)] & (places < ends[:, None])).astype(np.float32)

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens as `TokenSplit.tokens` does."""
        return self._tokens[start:stop]

    def scored_windows(self, block_size: int, batch: int, stride: int | None = None) -> Iterator[ScoredWindows]:
        """Yield an epoch's windows in order, (n, block_size + 1), block_size, and which targets count, (n, block_size).

        They begin where conversations begin, whatever the stride.
        """
        starts, _ = self.packs(block_size)
        for first in range(0, len(starts), batch):
            batch_starts = starts[first : first + batch]
            yield self.windows(batch_starts, block_size + 1), block_size, self.weights(batch_starts + 1, block_size) > 0

    def predicted(self, block_size: int, document_end: int | None = None) -> tuple[int, int]:
        """Return how many tokens windows of this size learn, and the bytes of text in them."""
        tokens = self.learned_tokens(block_size)
        return len(tokens), self.tokenizer.count_bytes(tokens)

    def learned_tokens(self, block_size: int) -> NDArray[Any]:
        """Return the tokens that windows of this size learn, in order."""
        kept, (starts, ends) = np.zeros(len(self) + 1, np.int8), self.packs(block_size)
        kept[starts] += 1
        kept[np.minimum(ends, len(self))] -= 1
        return self._tokens[self.answers & np.cumsum(kept[:-1], dtype=np.int8).view(bool)]

    def check_context(self, block_size: int) -> None:
        """Refuse a context in which no token is learned: every answer begins after the end of its window."""
        if not len(self.learned_tokens(block_size)):
            places = np.flatnonzero(self.answers)
            nearest = (places - self._begins[np.searchsorted(self._begins, places, side="right") - 1]).min()
            wrong = f"no answer of the {self.name} split begins within model.block_size={block_size}"
            remedy = f"Use model.block_size={nearest} or more, or shorter conversations"
            raise UserFault(f"{wrong}: nothing is left to predict. {remedy}")

    def passes(self, n_tokens: int, block_size: int) -> float:
        """Return how many times so many tokens of training, also without weight, pass over the split."""
        return n_tokens / block_size / len(self.packs(block_size)[0])

    def describe(self, block_size: int) -> list[str]:
        """Return lines with counts of learned tokens, and examples with the learned part in [[ ]]."""
        lengths = np.diff(self._begins) - 1
        long = np.flatnonzero(lengths > block_size + 1)
        taught, all_tokens = len(self.learned_tokens(block_size)), len(self) - len(lengths) + 1
        share = f"{taught:,} tokens are learned, {all_tokens - taught:,} only read"
        lines = [f"Answers    {share}, of {len(lengths):,} conversations in {len(self.packs(block_size)[0]):,} windows"]
        if len(long):
            many = f"{len(long):,} are longer than model.block_size={block_size} and are learned that far"
            lines.append(f"           {many}, number {long[0] + 1:,} first ({lengths[long[0]]:,} tokens)")
        lines.append("           Learned is what is in [[ ]], for example:")
        for begin, length in list(zip(self._begins, lengths, strict=False))[:EXAMPLES]:
            lines.append("             " + self._shown(slice(begin, begin + min(length, block_size + 1))))
        return lines

    def _shown(self, part: slice) -> str:
        text, names = "", self.tokenizer.names
        rows = zip(self._tokens[part].tolist(), self.answers[part].tolist(), strict=True)
        for (is_answer, name), group in itertools.groupby(rows, lambda row: (row[1], names.get(row[0]))):
            shown = name or repr(self.tokenizer.decode([token for token, _ in group]))[1:-1]
            text += f"[[{shown}]]" if is_answer else shown
        text = text.replace("]][[", "")
        return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


Split = TokenSplit | ConversationSplit  # one face: either can be trained on and scored
