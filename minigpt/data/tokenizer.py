"""Text to tokens and back.

Every tokenizer is a list of byte strings and an encoder (minigpt/data/tokenizers). The place of a string is its
token, decoding looks it up and joins; one more token, end-of-text, separates documents, unless the encoder has none.
byte, bpe and gpt2 round-trip any bytes, char any text over its alphabet. Text is only ever text:
`<|endoftext|>` becomes the end-of-text token when asked for, and never otherwise.
"""

import base64
import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.convert import shown
from minigpt.data.chat.template import ChatTemplate
from minigpt.data.tokenizers import TOKENIZERS
from minigpt.data.tokenizers.file import FileEncoder, Rules, read_vocabulary, tokens_of
from minigpt.data.tokenizers.scheme import END_OF_TEXT, Scheme
from minigpt.faults import UserFault

FORMAT = "minigpt-tokenizer"


class Tokenizer:
    """Turns text into the tokens of a vocabulary, and back.

    Attributes:
        name: of its encoder: byte | char | bpe | gpt2 | file.
        vocab_size: V, tokens in all, end-of-text included.
        eot: the end-of-text token, or None (char). Its bytes are empty: a border between documents is not text.
        start: the tokens that precede each text: [] or, of a file that says so, its beginning-of-text token.
        special: the control tokens, name -> token. Their bytes are empty, too.
        names: the same, token -> name.
        control: the names of the control tokens that were added after all other tokens.
        rules: file only: what makes it.
        template: of another program's chat model, how its messages become text; no part of the vocabulary.
        pattern: bpe, gpt2: the regular expression that splits text into words first.
        begins_texts: whether a model's training text has shown what follows end-of-text; no part of the vocabulary.
        dtype: of token arrays, in memory and on disk.
    """

    def __init__(self, name: str, tokens: Sequence[bytes], rules: Rules | None = None, *, control: Sequence[str] = ()):
        """Take a vocabulary: `tokens[i]` are the bytes of token i, end-of-text not among them unless there are rules.

        Raises:
            ValueError: the encoder can't use this vocabulary.
        """
        scheme = scheme_of(name)
        self.name, self.rules, self._given, self._table = name, rules, list(tokens), list(tokens)
        if rules is not None:
            self.special = tokens_of(rules.content)[1]
            self._encoder = scheme.encoder(tokens, rules)
        else:
            if len(set(tokens)) != len(tokens) or b"" in tokens:
                raise ValueError("a token is empty or appears twice")
            self.special = {END_OF_TEXT: len(tokens)} if scheme.has_eot else {}
            self._encoder = scheme.encoder(tokens)
            self._table += [b""] * scheme.has_eot
        self.template: ChatTemplate | None = None
        self.begins_texts = False
        self.eot = rules.eot if rules else self.special.get(END_OF_TEXT)
        self.control = list(control)
        self.special |= {word: number for number, word in enumerate(control, len(self._table))}
        self._table += [b""] * len(control)
        self.start = [] if rules is None or rules.bos is None else [rules.bos]
        self.names = {token: word for word, token in self.special.items()}
        self.vocab_size = len(self._table)
        self.dtype = np.uint16 if self.vocab_size <= 65536 else np.uint32
        self._prefix: bytes = getattr(self._encoder, "prefix", b"")  # put before each text by the encoder
        self.pattern: str | None = getattr(self._encoder, "pattern", None)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Return the tokens of a text, without `start`.

        Args:
            text: any text without lone surrogates, which are not characters and have no UTF-8.
            allow_special: let `<|endoftext|>` and other control tokens' names become them. Without it, they are text.
        """
        data = utf8(text)
        if not allow_special or not self.special:
            return self.encode_bytes(data).tolist()
        if isinstance(self._encoder, FileEncoder) and not self.control:
            return list(self._encoder.with_names.encode(text, add_special_tokens=False).ids)
        tokens: list[int] = []
        names = "|".join(map(re.escape, sorted(self.special, key=len, reverse=True)))
        for number, part in enumerate(re.split(f"({names})", text)):
            tokens += [self.special[part]] if number % 2 else self.encode_bytes(part.encode()).tolist()
        return tokens

    def encode_bytes(self, data: bytes) -> NDArray[Any]:
        """Return the tokens (n,) of bytes. UTF-8 gives what `encode` gives; other bytes become tokens one by one."""
        parts = list(self.encode_chunks([data] if data else []))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=self.dtype)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[Any]]:
        """Yield the tokens of one long text that comes in chunks, cut anywhere: the same tokens as in one piece.

        Raises:
            UserFault: a character outside the alphabet or bytes that are no UTF-8 (char), with their position.
        """
        return (tokens.astype(self.dtype) for tokens in self._encoder.encode_chunks(chunks))

    def runs(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Cut one long text, given in chunks, into pieces. The tokens of the pieces, joined, are those of the text.

        The cuts depend on the text alone, not on the chunks.
        """
        return self._encoder.runs(chunks)

    def decode_bytes(self, tokens: Sequence[int] | NDArray[np.integer]) -> bytes:
        """Return the bytes of a text's tokens; control tokens give none.

        Raises:
            ValueError: a token outside 0 ... vocab_size - 1.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        if (strange := tokens[(tokens < 0) | (tokens >= self.vocab_size)]).size:
            raise ValueError(f"token {strange[0]} is outside the {self.name} tokenizer's {self.vocab_size:,} tokens")
        return b"".join(map(self._table.__getitem__, tokens.tolist())).removeprefix(self._prefix)

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 show as U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token inside a text, b"" for a control token."""
        return self._table[token]

    def count_bytes(self, tokens: NDArray[np.integer]) -> int:
        """Return the sum of the bytes of tokens, of any shape."""
        counts = np.bincount(tokens.flatten(), minlength=self.vocab_size)
        return int(counts @ [len(content) for content in self._table])

    def extended(self, control: Sequence[str]) -> "Tokenizer":
        """Return this tokenizer with more control tokens; the numbers of all others stay."""
        return Tokenizer(self.name, self._given, self.rules, control=[*self.control, *control])

    def to_json(self) -> dict[str, Any]:
        """Return the whole tokenizer as the content of a tokenizer.json, which `load_tokenizer` reads."""
        tokens = [base64.b64encode(token).decode() for token in self._given]
        return {
            "format": FORMAT,
            "version": 1,
            "name": self.name,
            "vocab_size": self.vocab_size,
            "eot": self.eot,
            "pattern": self.pattern,
            **({"tokens": tokens} if self.rules is None else asdict(self.rules)),
            **({"control": self.control} if self.control else {}),
        }

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of its canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return what each token adds to the text; a character that consists of several tokens is at the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(tokenizer.token_bytes(token)) for token in tokens]
    return [*texts[:-1], texts[-1] + decoder.decode(b"", True)] if texts else []


def utf8(text: str) -> bytes:
    """Return a text's bytes; a lone surrogate is refused with its position."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"a lone surrogate U+{ord(text[error.start]):04X} at character {error.start:,}"
        raise UserFault(f"text holds {surrogate}: it stands for no character. Save it as UTF-8 and try again") from None


def scheme_of(name: str, vocab_size: int | None = None) -> Scheme:
    """Return the scheme of this name, and check that it can make a vocabulary of this size."""
    if name not in TOKENIZERS:
        raise UserFault(f"tokenizer.name={shown(name)} is not known; wanted one of {', '.join(TOKENIZERS)}")
    scheme = TOKENIZERS[name]
    if vocab_size is not None and vocab_size < scheme.min_vocab_size:
        wanted = f"at least {scheme.min_vocab_size}: the 256 bytes and end-of-text. Or use tokenizer=char"
        raise UserFault(f"tokenizer.vocab_size={vocab_size} is too small for tokenizer={name}; wanted {wanted}")
    return scheme


def build_tokenizer(name: str, *, vocab_size: int = 0, alphabet: Iterable[str] = (), train: Any = ()) -> Tokenizer:
    """Make a tokenizer.

    Args:
        name: byte | char | bpe | gpt2; a file's is read by `read_tokenizer_json`.
        vocab_size: bpe only: tokens in all, end-of-text included. The text may be too short for so many.
        alphabet: char only: the characters of the whole text.
        train: bpe only: the documents to learn from, each an iterable of chunks of bytes.
    """
    return Tokenizer(name, scheme_of(name, vocab_size).vocabulary(vocab_size, alphabet, train))


def read_tokenizer_json(path: Path, eot: str | None = None) -> Tokenizer:
    """Make the tokenizer of a tokenizer.json in Hugging Face's format.

    Args:
        path: the file; a tokenizer_config.json beside it may name the tokens that begin and end a text.
        eot: the end-of-text token's name, where another is wanted or none is named.
    """
    return Tokenizer("file", *read_vocabulary(path, eot))


def load_tokenizer(content: Any, where: object = "this") -> Tokenizer:
    """Make the tokenizer that `to_json` wrote down. Everything in the content is checked, nothing in it is run."""
    try:
        name, control = content["name"], content.get("control", [])
        rules = Rules(*(content[field.name] for field in fields(Rules))) if name == "file" else None
        given = [base64.b64decode(token, validate=True) for token in content.get("tokens", [])]
        tokenizer = Tokenizer(name, tokens_of(rules.content)[0] if rules else given, rules, control=control)
        own = {key: content[key] for key in content.keys() - {"template", "begins_texts"}}
        if tokenizer.to_json() != own:
            raise ValueError("its settings are not those of its tokens")
        tokenizer.begins_texts = content.get("begins_texts") is True
        if template := content.get("template"):
            tokenizer.template = ChatTemplate(template["source"], template["names"], frozenset(template["ends"]))
    except Exception as error:  # the library `tokenizers` raises no other
        raise UserFault(f"{where} is not a usable tokenizer: {type(error).__name__}: {error}") from None
    return tokenizer
