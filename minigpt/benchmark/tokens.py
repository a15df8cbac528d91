"""Tokens made on the spot: seeded, with something to learn in them, the same for every contender."""

import json
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepare import Prepared, prepare
from minigpt.data.shards import SplitWriter, TokenSplit, fingerprint
from minigpt.data.tokenizer import Tokenizer
from minigpt.rundir.files import write_json

ALPHABET = (string.ascii_letters + string.digits + " .\n").encode()  # 65 characters, as many as Tiny Shakespeare has
SMALL_TOKENS = 1_100_000  # Tiny Shakespeare's length
LARGE_TOKENS = 4_000_000  # for a vocabulary like GPT-2's
_CHAINS = 4096


def made_tokens(count: int, vocab_size: int, *, seed: int = 1) -> NDArray[np.uint16]:
    """Token ids (count,) of a Markov chain: two times in three a token's one successor, else a draw by Zipf's law."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, vocab_size + 1)
    edges = np.cumsum(weights / weights.sum())
    successor = generator.permutation(vocab_size)
    length = -(-count // _CHAINS)
    out = np.empty((length, _CHAINS), dtype=np.uint16)
    state = generator.permutation(vocab_size)[np.arange(_CHAINS) % vocab_size]  # so that each token is there
    for step in range(length):
        out[step] = state
        drawn = np.minimum(np.searchsorted(edges, generator.random(_CHAINS)), vocab_size - 1)
        state = np.where(generator.random(_CHAINS) < 2 / 3, successor[state], drawn)
    return out.T.reshape(-1)[:count]


def make_tokens(folder: Path, vocab_size: int) -> Prepared:
    """Make tokens for runs whose data.source is `folder`/text.txt and data.dir `folder`/data.

    65 tokens are characters of a text that is prepared as any text is. A larger vocabulary is put in the place of
    a small text's: learning one of 50,257 would take minutes, and which bytes a token stands for costs no time.
    """
    if vocab_size == len(ALPHABET):
        folder.mkdir(parents=True, exist_ok=True)
        characters = np.frombuffer(ALPHABET, dtype=np.uint8)[made_tokens(SMALL_TOKENS, vocab_size)]
        (folder / "text.txt").write_bytes(characters.tobytes())
        return prepare(_data(folder), TokenizerConfig(name="char"), say=lambda _: None)
    pairs = [number.to_bytes(2, "big") for number in range(vocab_size - 257)]
    tokenizer = Tokenizer("bpe", [*(bytes([each]) for each in range(256)), *pairs])
    tokens = made_tokens(LARGE_TOKENS, vocab_size)
    border = len(tokens) * 9 // 10
    return _plant(folder, tokenizer, iter([tokens[:border]]), val=tokens[border:])


def _data(folder: Path) -> DataConfig:
    return DataConfig(name="text", source=str(folder / "text.txt"), dir=str(folder / "data"))


def _plant(
    folder: Path, tokenizer: Tokenizer, train: Iterator[NDArray[np.uint16]], *, val: NDArray[np.uint16]
) -> Prepared:
    """Put these tokens where those of a small text are kept; whoever prepares that text finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("these tokens were made, not read\n" * 20)
    kept = prepare(_data(folder), TokenizerConfig(name="byte"), say=lambda _: None).folder
    write_json(kept / "tokenizer.json", tokenizer.to_json())
    content = json.loads((kept / "prepared.json").read_bytes())
    sidecars = {}
    for name, parts in (("train", train), ("val", iter([val]))):
        with SplitWriter(kept, name, tokenizer=tokenizer) as writer:
            for tokens in parts:
                writer.write(tokens)
            writer.bytes = writer.tokens  # a byte of text behind each
            sidecars[name] = writer.finish()
        content["summary"][name] = {key: sidecars[name][key] for key in ("tokens", "bytes")}
    content["summary"]["vocab_size"] = tokenizer.vocab_size
    content["fingerprint"] = fingerprint([sidecars["train"]["fingerprint"], sidecars["val"]["fingerprint"]])
    write_json(kept / "prepared.json", content)
    return prepare(_data(folder), TokenizerConfig(name="byte"), say=lambda _: None)


def chunks(split: TokenSplit, size: int = 1 << 22) -> Iterator[NDArray[np.uint16]]:
    """A split's tokens, piece by piece."""
    for start in range(0, len(split), size):
        yield split.tokens(start, start + size)
