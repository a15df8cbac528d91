"""The sampling loop: token ids in, token ids out. It knows a callable, not a model.

Every text is written as if it were alone: neither its neighbours in the batch nor the KV cache change it.
Two things follow from a text's length alone: which tokens the model sees next (`window_start`), and the random
number behind the next token (`uniform`, in draw.py).
"""

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import groupby

import torch
from torch import Tensor

from minigpt.faults import UserFault
from minigpt.model.cache import KVCache
from minigpt.model.evaluate import upload
from minigpt.sampling.draw import sample_tokens, uniform
from minigpt.sampling.filters import SamplingOptions, filter_rows

# A language model: (B, T) ids on the CPU, padded right to T, and the B real lengths -> (B, V) logits after each row's
# last real token. With a cache, the tokens follow what it holds and are appended to it, padding included.
Forward = Callable[[Tensor, Sequence[int], KVCache | None], Tensor]
NewCache = Callable[[int], KVCache]  # the number of rows -> an empty cache


class NonFiniteLogits(UserFault):
    """The model's logits are NaN or infinite."""


class TextInProgress:
    """A text being written, with its own options.

    Args:
        tokens: the prompt, at least one token; what is written is appended to it.
        number: which of its prompt's samples it is.
        ends: tokens that end it and are no part of it.
    """

    def __init__(self, tokens: list[int], options: SamplingOptions, number: int = 0, ends: Set[int] = frozenset()):
        self.tokens, self.options, self.number, self.ends = tokens, options, number, ends
        self.prompt_length = len(tokens)
        self.text = ""  # decoded from the new tokens; set by `write_texts`
        self.ended = ""  # "length" | "end of text" | "stopped", which the caller sets

    @property
    def written(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_length :]


def window_start(length: int, block_size: int) -> int:
    """Return the index of the first token that the model sees in a text of `length` tokens.

    The window grows to block_size tokens. When one more comes, the last block_size // 2 tokens are kept and read
    again from position 0, and the window grows again. A prompt longer than the window is treated as if it had been
    written token by token, so its last block_size // 2 to block_size tokens are read.
    """
    if length <= block_size:
        return 0
    kept = max(block_size // 2, 1)
    steps_between = block_size - kept + 1
    return length - kept - (length - block_size - 1) % steps_between


def generate(reader: "Reader", texts: Sequence[TextInProgress]) -> Iterator[tuple[TextInProgress, int, Tensor]]:
    """Write texts to their ends, all in one batch; yield what `Writer.step` yields."""
    writer = Writer(reader)
    writer.join(texts)
    while writer.texts:
        yield from writer.step()


class Writer:
    """Texts that grow together, one token per step. Texts join and leave between steps; a text that ends leaves."""

    def __init__(self, reader: "Reader"):
        self.reader = reader
        self.texts: list[TextInProgress] = []
        self.seen: Tensor | None = None  # (B, V) bool: the tokens in each text; None: not known now

    @torch.inference_mode()
    def join(self, texts: Sequence[TextInProgress]) -> None:
        """Add texts, and read their prompts."""
        assert all(text.tokens for text in texts), "there must be a token to start from, e.g. end-of-text"
        self.reader.join([text.tokens for text in texts])
        self.texts += texts
        self.seen = None

    @torch.inference_mode()
    def leave(self, text: TextInProgress) -> None:
        """Remove an unfinished text."""
        index = self.texts.index(text)
        self.reader.leave(index)
        self.texts[index] = self.texts[-1]
        del self.texts[-1]
        self.seen = None

    @torch.inference_mode()
    def step(self) -> Iterator[tuple[TextInProgress, int, Tensor]]:
        """Give each text its next token. Texts that have ended leave when the iterator is exhausted.

        Yields:
            Each text, its new token, and the logits (V,), fp64, from which the token was drawn; nothing for a token
            that ends the text. The caller may set `ended`.

        Raises:
            NonFiniteLogits: the model's logits are NaN or infinite.
        """
        texts = list(self.texts)
        logits = self.reader.next_logits([text.tokens for text in texts])  # (B, V)
        logits = (logits.cpu() if logits.device.type == "mps" else logits).double()  # MPS has no fp64
        for row, text in enumerate(texts):
            if len(text.tokens) == 1 and text.tokens[0] in text.ends:
                logits[row, text.tokens[0]] = logits[row].min()  # what starts from end-of-text does not end at once
        if self.seen is None and any(text.options.repetition_penalty != 1 for text in texts):
            self.seen = tokens_seen([text.tokens for text in texts], logits)
        uniforms = [uniform(text.options.seed, text.number, len(text.tokens)) for text in texts]
        numbers = upload(torch.tensor(uniforms, dtype=torch.float64), logits.device)
        drawn = sample_tokens(filter_rows(logits, self.seen, [text.options for text in texts]), numbers)
        if self.seen is not None:
            self.seen.scatter_(1, drawn[:, None], True)
        for index, (text, token) in enumerate(zip(texts, read_tokens(drawn, logits), strict=True)):
            if token in text.ends:
                text.ended = "end of text"
                continue
            text.tokens.append(token)
            if len(text.tokens) - text.prompt_length >= text.options.max_new_tokens:
                text.ended = "length"
            yield text, token, logits[index]
        for text in reversed(texts):  # from the end, so that no row moves
            if text.ended:
                self.leave(text)


def read_tokens(drawn: Tensor, logits: Tensor) -> list[int]:
    """Bring the tokens (B,) drawn from logits (B, V) to the CPU: the only wait for the device per token."""
    finite = logits.sum(dim=-1).isfinite()  # in fp64 no sum of fp32 logits overflows
    tokens, are_finite = torch.stack([drawn, finite.to(drawn.dtype)]).cpu().tolist()
    if not all(are_finite):
        remedy = "Sample from an earlier checkpoint: checkpoint=RUN/checkpoints/step-..."
        raise NonFiniteLogits(f"the checkpoint holds non-finite weights: got NaN or infinite logits. {remedy}")
    return tokens


def tokens_seen(texts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Return (B, V) bool: which tokens each text holds."""
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        seen[row, torch.tensor(text)] = True
    return upload(seen, logits.device)


class Reader:
    """Gives the logits that follow some texts, each of which grows by one token from call to call.

    With a cache it reads each token once, until a text's window moves: then that window is read anew. Without a cache
    it reads the whole window for every token, which is slower but plain to read.

    Args:
        forward: the model.
        block_size: its window, in tokens.
        new_cache: makes an empty KV cache with a number of rows; None: no cache.
        room: rows of the cache, if texts join and leave. Each prompt is then read alone, so that its logits do not
            depend on other texts. None: all texts come at once, and are read together.
    """

    def __init__(self, forward: Forward, block_size: int, new_cache: NewCache | None, *, room: int | None = None):
        self.forward = forward
        self.block_size = block_size
        self.new_cache = new_cache
        self.starts: list[int] = []  # where each cached row's window begins
        self.alone = room is not None
        self.cache: KVCache | None = None
        if new_cache is not None and room is not None:
            self.cache = new_cache(room)
            self.clear()

    def next_logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Return (B, V) logits of each text's next token, for the texts that have joined and not left."""
        starts = [window_start(len(text), self.block_size) for text in texts]
        if self.cache is None:
            return self.read([text[start:] for text, start in zip(texts, starts, strict=True)])
        moved = [row for row, start in enumerate(starts) if start != self.starts[row]]
        for rows in [[row] for row in moved] if self.alone else [moved] if moved else []:
            self.cache.put(rows, self.cached([texts[row][starts[row] : -1] for row in rows]))
        self.starts = starts
        return self.read([text[-1:] for text in texts], self.cache)

    def join(self, texts: Sequence[Sequence[int]]) -> None:
        """Read all tokens of new texts but the last, and append their rows."""
        if self.new_cache is None:
            return
        starts = [window_start(len(text), self.block_size) for text in texts]
        windows = [text[start:-1] for text, start in zip(texts, starts, strict=True)]
        for group in [list(equal) for _, equal in groupby(windows)] if self.alone else [windows]:
            part = self.cached(group)
            if self.cache is None:
                self.cache = part
            else:
                self.cache.join(part)
        self.starts += starts

    def leave(self, row: int) -> None:
        """Remove a text; the last one takes its row."""
        if self.cache is not None:
            self.cache.leave(row)
            self.starts[row] = self.starts[-1]
            del self.starts[-1]

    def clear(self) -> None:
        """Remove all texts."""
        self.starts = []
        if self.cache is not None:
            self.cache.set_lengths([])

    def read(self, rows: Sequence[Sequence[int]], cache: KVCache | None = None) -> Tensor:
        """Return (B, V) logits after rows of tokens; shorter rows are padded with 0 on the right."""
        lengths = [len(row) for row in rows]
        padded = [[*row, *[0] * (max(lengths) - len(row))] for row in rows]
        return self.forward(torch.tensor(padded), lengths, cache)

    def cached(self, windows: Sequence[Sequence[int]]) -> KVCache:
        """Return a cache that holds these windows; equal ones (the samples of one prompt) are read once."""
        assert self.new_cache is not None
        different = list(dict.fromkeys(tuple(window) for window in windows))
        cache = self.new_cache(len(different))
        if any(different):
            self.read(different, cache)
            cache.set_lengths([len(window) for window in different])
        if len(different) == len(windows):
            return cache
        return cache.select([different.index(tuple(window)) for window in windows])
