"""The tokens of one text in memory: a file to score, or a text from Python."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.readers import read
from minigpt.data.readers.document import File, ReadOptions
from minigpt.data.readers.plain import kind_of_binary
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[Iterable[bytes]], progress: Callable[[int], object] = lambda n_bytes: None
) -> TokenSplit:
    """Return documents, each as chunks of bytes, as one text with end-of-text between them.

    Raises:
        UserFault: a character that the tokenizer does not know.
    """
    pieces, counts = list[NDArray[Any]](), Counter[str]()

    def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
        in_word = False
        for chunk in filter(None, chunks):
            yield chunk
            words = len(chunk.split()) - (in_word and not chunk[:1].isspace())  # a word may be cut
            in_word = not chunk[-1:].isspace()
            counts.update(bytes=len(chunk), words=words, lines=chunk.count(b"\n"))
            progress(len(chunk))

    for chunks in documents:
        border = [tokenizer.eot] if pieces and tokenizer.eot is not None else []
        before = [np.array([*border, *tokenizer.start], tokenizer.dtype)]
        for piece in tokenizer.encode_chunks(counted(chunks)):  # none of a record without text
            pieces += [*before, piece]
            before = []
    tokens = np.concatenate([np.zeros(0, tokenizer.dtype), *pieces])
    if len(tokens) < 2:
        raise UserFault(f"the text has {len(tokens)} tokens; at least 2 are needed to predict one")
    # Texts are compared with themselves only: the same tokenizer gives the same tokens.
    return TokenSplit("text", tokenizer, [tokens], counts["bytes"], tokenizer.hash, counts["words"], counts["lines"])


def read_text(path: Path, tokenizer: Tokenizer, options: ReadOptions, progress: Callable[[int], object]) -> TokenSplit:
    """Read a file as `data.source` is read, JSON lines and .gz too.

    `progress` is called with the number of bytes read since the last call.

    Raises:
        UserFault: it can't be read or is no text, or it holds a character that the tokenizer does not know, or too
            few tokens to predict one.
    """
    file = File(path, path.name)
    if kind := kind_of_binary(file, options.encoding):
        raise UserFault(f"{path} is {kind}; wanted text")
    try:
        return encode_documents(tokenizer, (document.chunks for document in read(file, options)), progress)
    except UserFault as fault:
        raise UserFault(str(fault) if str(fault).startswith(str(path)) else f"{path}: {fault}") from None
