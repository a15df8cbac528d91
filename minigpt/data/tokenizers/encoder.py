"""The form of an encoder: how one kind of tokenizer makes its vocabulary and cuts text into tokens."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"
SINGLE_BYTES = [bytes([b]) for b in range(256)]


class Encoder(Protocol):
    """A kind of tokenizer.

    Attributes:
        min_vocab_size: the least that `tokenizer.vocab_size` may ask for; 0 if it decides nothing.
        needs_alphabet: the vocabulary is made from the set of the text's characters.
        takes_any_bytes: text need not be valid in its encoding.
        has_eot: there is an end-of-text token; its number is that of the tokens before it.
        pattern: the regular expression that splits text into words first, stored with the vocabulary.
    """

    min_vocab_size: int
    needs_alphabet: bool
    takes_any_bytes: bool
    has_eot: bool
    pattern: str | None

    def __init__(self, tokens: Sequence[bytes]): ...

    @staticmethod
    def vocabulary(vocab_size: int, alphabet: Iterable[str], train: Iterable[Iterable[bytes]]) -> list[bytes]:
        """Make a vocabulary.

        Args:
            vocab_size: tokens wanted in all, end-of-text included.
            alphabet: the characters of the whole text; none unless the encoder needs them.
            train: the documents of the training text, each as chunks of bytes.

        Returns:
            The bytes of each token, end-of-text not among them.
        """

    @staticmethod
    def fault_in(tokens: Sequence[bytes]) -> str | None:
        """What is wrong with a vocabulary read from a file, or None. Its tokens are different and not empty."""

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.integer[Any]]]:
        """Tokens of one text that comes in chunks, cut anywhere; they don't depend on the cuts."""
