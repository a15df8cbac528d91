"""Text to tokens and back: byte, char, bpe (trained on the corpus) and gpt2.

Every tokenizer is a list of byte strings. The place of a string is its token, decoding looks it up and
joins; one more token, end-of-text, separates documents (char has none: its tokens are the characters).
byte, bpe and gpt2 round-trip any bytes, char any text over its alphabet. Text is only ever text:
`<|endoftext|>` becomes the end-of-text token when asked for, and never otherwise.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from minigpt.config.convert import shown
from minigpt.data.bpe import gpt2_ranks, train_ranks
from minigpt.data.chunking import runs
from minigpt.faults import UserFault

END_OF_TEXT = "<|endoftext|>"
MAX_VOCAB = 65536  # shards hold uint16
NAMES = ("byte", "char", "bpe", "gpt2")

# GPT-2's split pattern in the equivalent form that tiktoken runs without backtracking.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

_FORMAT, _VERSION = "minigpt-tokenizer", 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_INVALID = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as Python's surrogateescape shows them


class Tokenizer:
    """A vocabulary and the ways through it.

    Attributes:
        name: byte | char | bpe | gpt2.
        vocab_size: V, tokens in all, end-of-text included.
        eot: the end-of-text token, or None (char). Its bytes are empty: a border between documents is not text.
    """

    def __init__(self, name: str, tokens: Sequence[bytes]):
        """Take a vocabulary: `tokens[i]` are the bytes of token i, end-of-text not among them.

        Raises:
            UserFault: it has more than 65,536 tokens.
        """
        self.name = name
        self.eot = None if name == "char" else len(tokens)
        self.vocab_size = len(tokens) + (self.eot is not None)
        if self.vocab_size > MAX_VOCAB:
            raise UserFault(_too_many(name, self.vocab_size))
        self._tokens = list(tokens)
        self._table = self._tokens + [b""] * (self.eot is not None)
        if name == "char":
            self._codes = _code_table(self._tokens)
        elif name != "byte":
            ranks = {token: rank for rank, token in enumerate(self._tokens)}
            self._single = [ranks[bytes([b])] for b in range(256)]
            self._encoding = tiktoken.Encoding(name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Tokens of a text.

        Args:
            text: any text without lone surrogates, which stand for no character and have no UTF-8.
            allow_special: let `<|endoftext|>` become the end-of-text token. Without it, it is text.

        Raises:
            UserFault: a lone surrogate, or a character outside the alphabet (char), with its position.
        """
        lone = _SURROGATE.search(text)
        if lone:
            raise UserFault(
                f"text holds a lone surrogate U+{ord(lone.group()):04X} at character {lone.start():,}: it stands for "
                "no character. Wanted valid text; save it as UTF-8 and try again"
            )
        parts = text.split(END_OF_TEXT) if allow_special and self.eot is not None else [text]
        tokens: list[int] = []
        for number, part in enumerate(parts):
            if number and self.eot is not None:
                tokens.append(self.eot)
            tokens += self.encode_bytes(part.encode()).tolist()
        return tokens

    def encode_bytes(self, data: bytes) -> NDArray[np.uint16]:
        """Tokens (n,) of bytes. UTF-8 gives what `encode` gives for its text; other bytes go in one by one.

        Raises:
            UserFault: a character outside the alphabet or bytes that are no UTF-8 (char), with their position.
        """
        parts = list(self.encode_chunks([data]))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.uint16]]:
        """Tokens of one long text that comes in chunks, cut anywhere: the same tokens as in one piece.

        Raises:
            UserFault: as `encode_bytes`.
        """
        if self.name == "byte":
            for chunk in chunks:
                yield np.frombuffer(chunk, dtype=np.uint8).astype(np.uint16)
        elif self.name == "char":
            characters = 0
            for run in runs(chunks):
                tokens = self._encode_characters(run, characters)
                characters += len(tokens)
                yield tokens
        else:
            yield from map(self._encode_run, runs(chunks))

    def decode_bytes(self, tokens: Sequence[int] | NDArray[np.integer]) -> bytes:
        """The bytes of tokens; end-of-text gives none.

        Raises:
            ValueError: a token outside 0 ... vocab_size - 1.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        if tokens.size and (tokens.min() < 0 or tokens.max() >= self.vocab_size):
            at = int(np.argmax((tokens < 0) | (tokens >= self.vocab_size)))
            raise ValueError(
                f"token {int(tokens[at])} at position {at} is outside the {self.name} tokenizer's vocabulary of "
                f"{self.vocab_size:,}; wanted 0 to {self.vocab_size - 1:,}"
            )
        if self.name == "byte":  # three times as many tokens as bpe has for a text, so worth a path of its own
            return tokens[tokens != self.eot].astype(np.uint8).tobytes()
        return b"".join(map(self._table.__getitem__, tokens.tolist()))

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of tokens; bytes that are no UTF-8 show as U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, b"" for end-of-text."""
        return self.decode_bytes([token])

    def to_json(self) -> dict[str, Any]:
        """All there is to it, ready for `json.dump`; `load_tokenizer` reads it back."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "name": self.name,
            "vocab_size": self.vocab_size,
            "eot": self.eot,
            "pattern": PATTERN if self.name in ("bpe", "gpt2") else None,
            "tokens": [base64.b64encode(token).decode() for token in self._tokens],
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of its canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _encode_characters(self, run: bytes, before: int) -> NDArray[np.uint16]:
        try:
            codes = np.frombuffer(run.decode().encode("utf-32-le"), dtype="<u4")
        except UnicodeDecodeError as error:
            raise UserFault(
                f"tokenizer=char needs UTF-8 text, got byte 0x{run[error.start]:02X} {error.start:,} bytes after "
                f"character {before:,}; use tokenizer=bpe or tokenizer=byte for any bytes"
            ) from None
        tokens = self._codes[np.minimum(codes, len(self._codes) - 1)]
        if tokens.size and tokens.min() < 0:
            at = int(np.argmax(tokens < 0))
            raise UserFault(
                f"character {chr(codes[at])!r} (U+{codes[at]:04X}) at position {before + at:,} is not in the alphabet "
                f"of {self.vocab_size} characters that tokenizer=char was made from. Leave it out, or train with "
                "tokenizer=bpe or tokenizer=byte, which take any text"
            )
        return tokens.astype(np.uint16)

    def _encode_run(self, run: bytes) -> NDArray[np.uint16]:
        try:
            return self._encoding.encode_to_numpy(run.decode(), disallowed_special=()).astype(np.uint16)
        except UnicodeDecodeError:
            pass
        # tiktoken's text route loses bytes that are no UTF-8, so these go in as byte tokens between the valid parts.
        tokens: list[int] = []
        for number, part in enumerate(_INVALID.split(run.decode("utf-8", "surrogateescape"))):
            if number % 2:
                tokens += map(self._single.__getitem__, part.encode("utf-8", "surrogateescape"))
            else:
                tokens += self._encoding.encode_ordinary(part)
        return np.array(tokens, dtype=np.uint16)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.name, self._tokens)


def build_tokenizer(name: str, *, vocab_size: int = 0, alphabet: Iterable[str] = (), train: Any = ()) -> Tokenizer:
    """Make a tokenizer.

    Args:
        name: byte | char | bpe | gpt2.
        vocab_size: bpe only: tokens in all, end-of-text included. The text may be too short for so many.
        alphabet: char only: the characters of the whole text.
        train: bpe only: the documents to learn from, each an iterable of chunks of bytes.

    Raises:
        UserFault: unknown name, a vocabulary outside 257 ... 65,536, GPT-2's file missing.
    """
    if name == "byte":
        return Tokenizer(name, [bytes([b]) for b in range(256)])
    if name == "char":
        return Tokenizer(name, [character.encode() for character in sorted(set(alphabet))])
    if name == "gpt2":
        return Tokenizer(name, gpt2_ranks())
    if name == "bpe":
        if vocab_size > MAX_VOCAB:
            raise UserFault(_too_many(name, vocab_size))
        if vocab_size < 257:
            raise UserFault(
                f"tokenizer.vocab_size={vocab_size} is too small; wanted at least 257: the 256 bytes and end-of-text. "
                "For a smaller vocabulary use tokenizer=char"
            )
        return Tokenizer(name, train_ranks(vocab_size - 1, train))
    raise UserFault(f"tokenizer.name={name!r} is not known; wanted one of {', '.join(NAMES)}")


def load_tokenizer(source: str | Path | dict[str, Any]) -> Tokenizer:
    """Read a tokenizer.json, or what `to_json` gave. Everything in it is checked, nothing in it is run.

    Raises:
        UserFault: the file is missing, damaged, or not a tokenizer of ours.
    """
    content: Any = source
    where = str(source) if isinstance(source, str | Path) else "this"
    if isinstance(source, str | Path):
        try:
            content = json.loads(Path(source).read_bytes())
        except OSError as error:
            raise UserFault(f"{where} can't be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise UserFault(f"{where} is no JSON: it is damaged or not a tokenizer") from None
    fault = _fault_in(content)
    if fault:
        raise UserFault(f"{where} is not a usable tokenizer: {fault}")
    return Tokenizer(content["name"], [base64.b64decode(token) for token in content["tokens"]])


def _fault_in(content: Any) -> str | None:
    """What is wrong with a tokenizer.json, or None."""
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        return f'wanted "format": "{_FORMAT}"'
    if content.get("version") != _VERSION:
        return f"it has format version {shown(content.get('version'))}; this program reads version {_VERSION}"
    name, encoded = content.get("name"), content.get("tokens")
    if name not in NAMES:
        return f"its name is {shown(name)}, wanted one of {', '.join(NAMES)}"
    if not isinstance(encoded, list) or not all(isinstance(token, str) for token in encoded):
        return '"tokens" must be a list of base64 strings'
    try:
        tokens = [base64.b64decode(token, validate=True) for token in encoded]
    except ValueError:
        return '"tokens" holds a string that is no base64'
    eot = None if name == "char" else len(tokens)
    vocab_size = len(tokens) + (eot is not None)
    if content.get("vocab_size") != vocab_size or content.get("eot") != eot:
        return (
            f"vocab_size={shown(content.get('vocab_size'))} and eot={shown(content.get('eot'))} don't fit its "
            f"{len(tokens):,} tokens; wanted {vocab_size:,} and {eot}"
        )
    if vocab_size > MAX_VOCAB:
        return f"it has {vocab_size:,} tokens, more than {MAX_VOCAB:,}"
    if len(set(tokens)) != len(tokens) or b"" in tokens:
        return "a token is empty or appears twice"
    if name == "char":
        return None if tokens and all(map(_is_character, tokens)) else "a token is not one UTF-8 character"
    missing = [b for b in range(256) if bytes([b]) not in set(tokens)] if name != "byte" else []
    if missing or (name == "byte" and tokens != [bytes([b]) for b in range(256)]):
        return f"byte 0x{(missing or [0])[0]:02X} has no token; all 256 bytes must be there"
    if name != "byte" and content.get("pattern") != PATTERN:
        return "its split pattern is not GPT-2's"
    return None


def _is_character(token: bytes) -> bool:
    try:
        return len(token.decode()) == 1
    except UnicodeDecodeError:
        return False


def _code_table(characters: Sequence[bytes]) -> NDArray[np.int32]:
    """Token by code point; -1 where the alphabet has a gap, and at the end."""
    codes = np.array([ord(character.decode()) for character in characters], dtype=np.int64)
    table = np.full(int(codes.max(initial=-1)) + 2, -1, dtype=np.int32)
    table[codes] = np.arange(len(codes))
    return table


def _too_many(name: str, vocab_size: int) -> str:
    remedy = {
        "char": "The text has too many different characters for tokenizer=char: use tokenizer=bpe",
        "bpe": f"Use tokenizer.vocab_size={MAX_VOCAB} or less",
    }.get(name, "Use tokenizer=bpe")
    return (
        f"tokenizer={name} would have a vocabulary of {vocab_size:,} tokens; wanted at most {MAX_VOCAB:,}, since "
        f"token files hold 16-bit numbers. {remedy}"
    )
