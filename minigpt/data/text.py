"""The tokens of one text in memory: a file to score, or a text from Python."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from minigpt.data.chat.packing import ConversationSplit
from minigpt.data.mix import MixedSplit
from minigpt.data.readers import read
from minigpt.data.readers.document import File, ReadOptions
from minigpt.data.readers.plain import HOLDS_NUL, kind_of_binary
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault

_IS_SPACE = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


@dataclass
class Text:
    """A text as a tokenizer cuts it; it can be scored as a `TokenSplit` can. `len()` counts its tokens.

    Attributes:
        tokenizer: whose tokens they are.
        bytes: of UTF-8 behind the tokens.
        words: runs of bytes between ASCII white space.
        lines: newlines.
    """

    tokenizer: Tokenizer
    bytes: int = 0
    words: int = 0
    lines: int = 0
    _tokens: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.uint16))

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def fingerprint(self) -> str:
        """Texts are compared with themselves only: the same tokenizer gives the same tokens."""
        return self.tokenizer.hash

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return tokens starts[i] ... starts[i] + length - 1 for each i, (n, length)."""
        return sliding_window_view(self._tokens, length)[starts].astype(np.int64)

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens start ... stop - 1."""
        return self._tokens[start:stop]


def encode_documents(
    tokenizer: Tokenizer,
    documents: Iterable[Iterable[bytes]],
    progress: Callable[[int], object] = lambda n_bytes: None,
) -> Text:
    """Return documents, each as chunks of bytes, as one text with end-of-text between them.

    Raises:
        UserFault: a character that the tokenizer does not know.
    """
    text = Text(tokenizer)
    pieces: list[NDArray[Any]] = []

    def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
        in_word = False
        for chunk in filter(None, chunks):
            yield chunk
            is_space = _IS_SPACE[np.frombuffer(chunk, np.uint8)]
            begins = ~is_space & np.concatenate([[not in_word], is_space[:-1]])
            in_word = not is_space[-1]
            text.bytes += len(chunk)
            text.words += int(begins.sum())
            text.lines += chunk.count(b"\n")
            progress(len(chunk))

    for chunks in documents:
        border = [tokenizer.eot] if pieces and tokenizer.eot is not None else []
        before = [np.array([*border, *tokenizer.start], tokenizer.dtype)]
        for tokens in tokenizer.encode_chunks(counted(chunks)):  # none of a record without text
            pieces += [*before, tokens]
            before = []
    text._tokens = np.concatenate(pieces) if pieces else np.zeros(0, tokenizer.dtype)
    return text


def read_text(path: Path, tokenizer: Tokenizer, options: ReadOptions, progress: Callable[[int], object]) -> Text:
    """Read a file as `data.source` is read, JSON lines and .gz too.

    Args:
        path: the file.
        tokenizer: to cut it with.
        options: how its bytes become text.
        progress: called with the number of bytes read since the last call.

    Raises:
        UserFault: it can't be read or is no text, or it holds a character that the tokenizer does not know, or too
            few tokens to predict one.
    """
    file = File(path, path.name)
    if (kind := kind_of_binary(file, options.encoding)) and kind != HOLDS_NUL:
        raise UserFault(f"{path} is {kind}; wanted text. Convert it to text first")
    try:
        text = encode_documents(tokenizer, (document.chunks for document in read(file, options)), progress)
    except UserFault as fault:
        raise UserFault(f"{path}: {fault}") from None
    if len(text) < 2:
        raise UserFault(f"{path} has {len(text)} tokens; at least 2 are needed to predict one")
    return text


Split = TokenSplit | MixedSplit | ConversationSplit | Text  # tokens in order, on disk or in memory
