"""tokenizer=byte: each byte is a token."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.data.tokenizers.encoder import SINGLE_BYTES


class ByteEncoder:
    """Bytes are their own tokens."""

    min_vocab_size = 0
    needs_alphabet = False
    takes_any_bytes = True
    has_eot = True
    pattern: str | None = None

    def __init__(self, tokens: Sequence[bytes]):
        pass

    @staticmethod
    def vocabulary(vocab_size: int, alphabet: Iterable[str], train: Iterable[Iterable[bytes]]) -> list[bytes]:
        return SINGLE_BYTES

    @staticmethod
    def fault_in(tokens: Sequence[bytes]) -> str | None:
        return None if list(tokens) == SINGLE_BYTES else "all 256 bytes must be there, in order"

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.uint8]]:
        return (np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks)
