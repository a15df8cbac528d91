"""tokenizer=byte: each byte is a token."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.data.tokenizers.scheme import SINGLE_BYTES, Scheme, runs


class ByteEncoder:
    """Takes bytes as their own tokens."""

    def __init__(self, tokens: Sequence[bytes]):
        if list(tokens) != SINGLE_BYTES:
            raise ValueError("all 256 bytes must be there, in order")

    runs = staticmethod(runs)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.uint8]]:
        return (np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks)


BYTE = Scheme(ByteEncoder, vocabulary=lambda vocab_size, alphabet, train: SINGLE_BYTES, takes_any_bytes=True)
