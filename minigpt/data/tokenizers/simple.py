"""tokenizer=byte: each byte is a token. tokenizer=char: each character of the text is one; it has no end-of-text."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.data.tokenizers.scheme import SINGLE_BYTES, Scheme, runs
from minigpt.faults import UserFault


class ByteEncoder:
    """Takes bytes as their own tokens."""

    runs = staticmethod(runs)

    def __init__(self, tokens: Sequence[bytes]):
        if list(tokens) != SINGLE_BYTES:
            raise ValueError("all 256 bytes must be there, in order")

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.uint8]]:
        return (np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks)


class CharEncoder:
    """Looks characters up in a table."""

    runs = staticmethod(runs)

    def __init__(self, tokens: Sequence[bytes]):
        codes = np.array([ord(character.decode()) for character in tokens])
        self._table = np.full(codes.max() + 2, -1)  # token by code point; -1: not in the alphabet, as is the last
        self._table[codes] = np.arange(len(codes))

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.int64]]:
        position = 0
        for run in runs(chunks):
            tokens = self._encode(run, position)
            position += len(tokens)
            yield tokens

    def _encode(self, run: bytes, position: int) -> NDArray[np.int64]:
        try:
            codes = np.frombuffer(run.decode().encode("utf-32-le"), dtype="<u4")
        except UnicodeDecodeError as error:
            got = f"byte 0x{run[error.start]:02X} {error.start:,} bytes after character {position:,}"
            raise UserFault(f"tokenizer=char needs UTF-8 text, got {got}; use tokenizer=bpe or byte") from None
        tokens = self._table[np.minimum(codes, len(self._table) - 1)]
        if tokens.size and tokens.min() < 0:
            index = int(np.argmax(tokens < 0))
            unknown = f"character {chr(codes[index])!r} (U+{codes[index]:04X}) at position {position + index:,}"
            known = f"the alphabet of {(self._table >= 0).sum():,} characters that tokenizer=char was made from"
            raise UserFault(f"{unknown} is not in {known}. Leave it out, or train with tokenizer=bpe or byte")
        return tokens


def characters(_: int, alphabet: Iterable[str], *__: object) -> list[bytes]:
    """Return the different characters of an alphabet, in order."""
    return [character.encode() for character in sorted(set(alphabet))]


BYTE = Scheme(ByteEncoder, lambda *_: SINGLE_BYTES, takes_any_bytes=True)
CHAR = Scheme(CharEncoder, characters, needs_alphabet=True, has_eot=False)
