"""tokenizer=byte: each byte is a token."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.data.tokenizers.scheme import SINGLE_BYTES, Scheme


class ByteEncoder:
    """Takes bytes as their own tokens."""

    def __init__(self, tokens: Sequence[bytes]):
        pass

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.uint8]]:
        return (np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks)


BYTE = Scheme(
    ByteEncoder,
    vocabulary=lambda vocab_size, alphabet, train: SINGLE_BYTES,
    fault_in=lambda tokens: None if list(tokens) == SINGLE_BYTES else "all 256 bytes must be there, in order",
    takes_any_bytes=True,
)
