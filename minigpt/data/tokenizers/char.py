"""tokenizer=char: each character of the text is a token. There is no end-of-text token."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.data.tokenizers.scheme import Scheme, runs
from minigpt.faults import UserFault


class CharEncoder:
    """Looks characters up in a table."""

    def __init__(self, tokens: Sequence[bytes]):
        try:
            codes = np.array([ord(character.decode()) for character in tokens])
            # Token by code point; -1 where the alphabet has a gap, and at the end.
            self._table = np.full(codes.max() + 2, -1)
        except (TypeError, ValueError):  # several characters, no UTF-8, no token at all
            raise ValueError("a token is not one UTF-8 character") from None
        self._table[codes] = np.arange(len(codes))

    runs = staticmethod(runs)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of a text.

        Raises:
            UserFault: a character outside the alphabet or bytes that are no UTF-8, with their position.
        """
        position = 0
        for run in self.runs(chunks):
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
            at = int(np.argmax(tokens < 0))
            what = f"character {chr(codes[at])!r} (U+{codes[at]:04X}) at position {position + at:,}"
            known = f"the alphabet of {(self._table >= 0).sum():,} characters that tokenizer=char was made from"
            raise UserFault(f"{what} is not in {known}. Leave it out, or train with tokenizer=bpe or byte")
        return tokens


CHAR = Scheme(
    CharEncoder,
    vocabulary=lambda vocab_size, alphabet, train: [character.encode() for character in sorted(set(alphabet))],
    needs_alphabet=True,
    has_eot=False,
)
