"""tokenizer=file: any tokenizer.json in Hugging Face's format, encoded by their library `tokenizers`.

The file is data: nothing in it is run. One that does not give a text back byte for byte is refused.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.convert import shown
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE, splitter, text_and_bytes
from minigpt.data.tokenizers.scheme import END_OF_TEXT, NO_SPACE, Scheme, byte_tokens, runs
from minigpt.faults import UserFault
from minigpt.files import read_json

RUN_BYTES = 1 << 18
EOT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>")  # tokens that end a text, not a turn of a conversation
# No word of a text runs on from another character into a blank, so that text can be cut before one.
_BORDER = re.compile(rb"(?s).*" + NO_SPACE + rb"(?= \S)")
_CROSSES = re.compile(NO_SPACE + b" ")
_PROBE = "It's 12 o'clock,  WE see: naïve 中文。\n\n\ton — 🙂 3.14\r\nend"
_BLANK = "\u2581"  # as SentencePiece writes one


@dataclass(frozen=True)
class Rules:
    """What makes a file's tokenizer. A checkpoint's tokenizer.json holds these fields.

    Attributes:
        eot: the token between two documents; one of the control tokens.
        bos: the token that begins each text, or None.
        end: the token that ends a turn of a conversation, if that is not `eot`.
        content: the tokenizer.json, as text.
    """

    eot: int
    bos: int | None
    end: int | None
    content: str


class FileEncoder:
    """Encodes with the library. `tokens[i]` are the bytes of token i, none for a control token or an unused number."""

    def __init__(self, tokens: Sequence[bytes], rules: Rules):
        self._library, self._single = open_library(rules.content), byte_tokens(tokens)
        self._content = rules.content
        # SentencePiece puts a blank before a text.
        self.prefix = b"".join(tokens[token] for token in self._encode_text("a")).removesuffix(b"a")
        strips = any(token["rstrip"] for token in json.loads(rules.content)["added_tokens"])
        self._is_whole = bool(self.prefix) or strips or any(map(_CROSSES.search, tokens))

    def runs(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        return iter([b"".join(chunks)]) if self._is_whole else runs(chunks, RUN_BYTES, _BORDER)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.int64]]:
        for run in self.runs(chunks):
            for number, part in enumerate(text_and_bytes(run)):
                if isinstance(part, str) and not (self.prefix and number):
                    tokens = self._encode_text(part)
                else:  # a blank before text that follows bytes which are none would be a new one
                    tokens = [self._single[byte] for byte in (part.encode() if isinstance(part, str) else part)]
                yield np.array(tokens, dtype=np.int64)

    @cached_property
    def with_names(self) -> Any:
        """The library, to which the names of control tokens in a text are these."""
        return open_library(self._content, named=True)

    def _encode_text(self, text: str) -> list[int]:
        return self._library.encode(text, add_special_tokens=False).ids


def open_library(content: str, *, named: bool = False) -> Any:
    """Return the library's tokenizer of a tokenizer.json; names of control tokens are text unless `named`."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(content)
    library.no_truncation()  # a text is never cut
    library.no_padding()
    library.encode_special_tokens = not named
    return library


def bpe_json(
    vocab: dict[str, int], merges: list[tuple[str, str]], control: Sequence[str], *, is_bytes: bool, pattern: str | None
) -> dict[str, Any]:
    """Return the tokenizer.json of a BPE: of bytes or characters, with text split by a pattern or whole."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    library = Tokenizer(models.BPE(vocab, merges))
    library.decoder = decoders.ByteLevel() if is_bytes else decoders.Fuse()  # type: ignore[assignment]
    if is_bytes:
        library.pre_tokenizer = splitter(pattern)
    library.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in control])
    return json.loads(library.to_str())


def tokens_of(content: str) -> tuple[list[bytes], dict[str, int]]:
    """Return the bytes of each token of a tokenizer.json, and its control tokens: name -> token."""
    file = json.loads(content)
    added = {token["id"]: token for token in file["added_tokens"]}
    model = file["model"]["vocab"]
    vocab = {name: number for number, (name, _) in enumerate(model)} if isinstance(model, list) else model
    steps = json.dumps([file["pre_tokenizer"], file["decoder"]], ensure_ascii=False)
    tokens = [b""] * (max([*vocab.values(), *added]) + 1)
    for name, number in vocab.items():
        if re.fullmatch("<0x[0-9A-F]{2}>", name) and '"ByteFallback"' in steps:
            tokens[number] = bytes.fromhex(name[3:5])
        elif '"ByteLevel"' in steps and CHARACTER_TO_BYTE.keys() >= set(name):
            tokens[number] = bytes(map(CHARACTER_TO_BYTE.__getitem__, name))
        else:
            tokens[number] = (name.replace(_BLANK, " ") if _BLANK in steps else name).encode()
    for number, token in added.items():
        tokens[number] = b"" if token["special"] else token["content"].encode()
    return tokens, {token["content"]: number for number, token in added.items() if token["special"]}


def read_vocabulary(path: Path, eot: str | None = None) -> tuple[list[bytes], Rules]:
    """Return the bytes of each token, and the rules, of a tokenizer.json and the tokenizer_config.json beside it.

    `eot` names the end-of-text token, if it should be another one, or if the files name none.
    """
    config_path = path.with_name("tokenizer_config.json")
    file, config = read_json(path), read_json(config_path) if config_path.is_file() else {}
    try:
        return _vocabulary(file, config, eot)
    except Exception as error:  # the library `tokenizers` raises no other
        own = "it is minigpt's own; minigpt export writes one into its folder"
        why = own if "format" in file else f"{type(error).__name__}: {error}"
        raise UserFault(f"{path} can't be used as a tokenizer.json in Hugging Face's format: {why}") from None


def _vocabulary(file: dict[str, Any], config: dict[str, Any], eot: str | None) -> tuple[list[bytes], Rules]:
    added = {token["content"]: token for token in file["added_tokens"]}
    words = {role: config.get(f"{role}_token") for role in ("bos", "eos")}
    named = {role: word["content"] if isinstance(word, dict) else word for role, word in words.items()}
    plain = [name for name in (named["eos"], *EOT_NAMES) if name in EOT_NAMES and name in added]
    eot = eot or (plain[0] if plain else named["eos"])
    if eot is None or eot not in added:
        wrong = "nothing says which of its added tokens ends a text"
        raise ValueError(f"{wrong}: tokenizer.eot=TOKEN; it has {', '.join([*added][:12]) or 'none'}")
    added[eot]["special"] = True
    file["model"].pop("dropout", None)
    library = open_library(json.dumps(file))
    content = library.to_str()
    tokens, special = tokens_of(content)
    with_bos, without = (library.encode("a", add_special_tokens=add).ids for add in (True, False))
    bos = with_bos[0] if with_bos[:1] != without[:1] and with_bos[0] in special.values() else None
    if config.get("add_bos_token") is not None:
        bos = special.get(named["bos"] or "") if config["add_bos_token"] else None
    end = special.get(named["eos"] or "")
    rules = Rules(special[eot], bos, None if end == special[eot] else end, content)
    encoder = FileEncoder(tokens, rules)
    back = b"".join(tokens[token] for part in encoder.encode_chunks([_PROBE.encode()]) for token in part)
    if back.removeprefix(encoder.prefix) != _PROBE.encode():
        got = f"{shown(_PROBE)} came back as {shown(back.decode(errors='replace'))}"
        raise ValueError(f"it does not give text back as it was: {got}. Use tokenizer=bpe")
    return tokens, rules


FILE = Scheme(FileEncoder, lambda *_: [])
