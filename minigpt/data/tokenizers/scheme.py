"""The form of a tokenizer: how it makes its vocabulary, and how it cuts text of any length into tokens."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

END_OF_TEXT = "<|endoftext|>"
SINGLE_BYTES = [bytes([b]) for b in range(256)]
RUN_BYTES = 65536  # in one run at most; the tokenizer's regex overflows its stack at a million blanks

# The last byte of a character that is no space: ASCII, or the last byte of a longer one, leaving out those that a
# Unicode space can end with (U+0085, U+00A0, U+1680, U+2000-200A, 2028, 2029, 202F, 205F, 3000).
NO_SPACE = rb"[!-~\x8b-\x9e\xa1-\xa7\xaa-\xae\xb0-\xbf]"
GPT2_BORDER = re.compile(rb"(?s).*" + NO_SPACE + rb"(?=[ \n\r\t])")  # matches up to the last place to cut at
BLANK_BORDER = re.compile(rb"(?s).*" + NO_SPACE + rb"(?=[ \t])")  # of a pattern that joins punctuation and line ends


@dataclass(frozen=True)
class Scheme:
    """Describes a kind of tokenizer: how it gets a vocabulary, and what encodes with one.

    Attributes:
        encoder: makes the encoder of a vocabulary, perhaps read from a file: an object with `runs` and `encode_chunks`
            of `Tokenizer`. ValueError: it can't encode with that.
        vocabulary: (vocab_size, alphabet, train) -> the bytes of each token, end-of-text not among them; from the
            number of tokens wanted, the characters of the whole text, and the training documents as chunks of bytes.
        min_vocab_size: least value of `tokenizer.vocab_size`; 0 if that setting has no effect.
        needs_alphabet: the vocabulary is made from the set of the text's characters.
        takes_any_bytes: text need not be valid in its encoding.
        has_eot: there is an end-of-text token; its number follows the vocabulary's.
    """

    encoder: Callable[..., Any]
    vocabulary: Callable[[int, Iterable[str], Iterable[Iterable[bytes]]], list[bytes]]
    min_vocab_size: int = 0
    needs_alphabet: bool = False
    takes_any_bytes: bool = False
    has_eot: bool = True

    @property
    def is_learned(self) -> bool:
        """Whether the vocabulary depends on the text."""
        return self.needs_alphabet or self.min_vocab_size > 0


def byte_tokens(tokens: Sequence[bytes]) -> list[int]:
    """Return the token of each single byte.

    Raises:
        ValueError: a byte has no token.
    """
    numbers = {token: number for number, token in enumerate(tokens) if len(token) == 1}
    if missing := [byte for byte in SINGLE_BYTES if byte not in numbers]:
        raise ValueError(f"byte 0x{missing[0].hex().upper()} has no token; all 256 bytes must be there")
    return [numbers[byte] for byte in SINGLE_BYTES]


def runs(chunks: Iterable[bytes], limit: int = RUN_BYTES, border: re.Pattern[bytes] = GPT2_BORDER) -> Iterator[bytes]:
    """Regroup chunks of one text, cut anywhere, into runs cut where it does not change the text's tokens.

    GPT-2's split pattern never lets a piece of non-space text run on into the white space behind it, and looks only
    forward. So between a non-space character and a blank, tab or newline the text can be cut. Where `limit` bytes hold
    no such place (one endless word or gap) a cut is forced. Cuts follow from the bytes alone, not from the chunks.

    Args:
        chunks: the text as bytes; UTF-8 or not.
        limit: bytes per run at most.
        border: matches up to the last place where the split pattern lets text be cut.

    Yields:
        Non-empty runs whose concatenation is the text.
    """
    left = b""
    for chunk in chunks:
        data, start = left + chunk, 0
        while len(data) - start > limit:
            end = _cut(data, start, limit, border)
            yield data[start:end]
            start = end
        left = data[start:]
    if left:
        yield left


def _cut(data: bytes, start: int, limit: int, border: re.Pattern[bytes]) -> int:
    if match := border.match(data, start, start + limit + 1):
        return match.end()
    end = start + limit
    while end > start + limit - 3 and data[end] & 0xC0 == 0x80:  # not inside a UTF-8 character
        end -= 1
    return end
