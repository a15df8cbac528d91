"""The form of a tokenizer: how it makes its vocabulary and cuts text into tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"
SINGLE_BYTES = [bytes([b]) for b in range(256)]


class Encoder(Protocol):
    """Cuts text into the tokens of a vocabulary."""

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[Any]]:
        """Tokens of one text that comes in chunks, cut anywhere; they don't depend on the cuts."""


@dataclass(frozen=True)
class Scheme:
    """Describes a kind of tokenizer: how it gets a vocabulary, and what encodes with one.

    Attributes:
        encoder: makes the encoder of a vocabulary.
        vocabulary: (vocab_size, alphabet, train) -> the bytes of each token, end-of-text not among them; from the
            number of tokens wanted in all, the characters of the whole text (if asked for), and the documents of the
            training text, each as chunks of bytes.
        fault_in: what is wrong with a vocabulary read from a file, or None. Its tokens are different and not empty.
        min_vocab_size: the least that `tokenizer.vocab_size` may ask for; 0 if it decides nothing.
        needs_alphabet: the vocabulary is made from the set of the text's characters.
        takes_any_bytes: text need not be valid in its encoding.
        has_eot: there is an end-of-text token; its number is that of the tokens before it.
        pattern: the regular expression that splits text into words first, stored with the vocabulary.
    """

    encoder: Callable[[Sequence[bytes]], Encoder]
    vocabulary: Callable[[int, Iterable[str], Iterable[Iterable[bytes]]], list[bytes]]
    fault_in: Callable[[Sequence[bytes]], str | None]
    min_vocab_size: int = 0
    needs_alphabet: bool = False
    takes_any_bytes: bool = False
    has_eot: bool = True
    pattern: str | None = None

    @property
    def is_learned(self) -> bool:
        """Whether the vocabulary depends on the text."""
        return self.needs_alphabet or self.min_vocab_size > 0
