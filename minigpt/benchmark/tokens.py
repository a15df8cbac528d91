"""Tokens made on the spot: seeded, with something to learn in them, the same for every entrant."""

import json
import os
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.make import save_json
from minigpt.data.prepare import Prepared, prepare
from minigpt.data.shards import SHARD_TOKENS, SplitWriter, TokenSplit, fingerprint
from minigpt.data.tokenizer import Tokenizer

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
    """Tokens for runs whose data.source is `folder`/text.txt and data.dir `folder`/data.

    65 tokens are characters of a text that is prepared as any text is. A larger vocabulary is put in the place of
    a small text's: learning one of 50,257 would take minutes, and which bytes a token stands for costs no time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    data = DataConfig(name="text", source=str(text), dir=str(folder / "data"))
    if vocab_size == len(ALPHABET):
        text.write_bytes(np.frombuffer(ALPHABET, dtype=np.uint8)[made_tokens(SMALL_TOKENS, vocab_size)].tobytes())
        return prepare(data, TokenizerConfig(name="char"), say=lambda _: None)
    tokens = made_tokens(LARGE_TOKENS, vocab_size)
    border = len(tokens) * 9 // 10
    return _plant(data, wide_tokenizer(vocab_size), tokens[:border], val=tokens[border:])


def wide_tokenizer(vocab_size: int) -> Tokenizer:
    """A vocabulary of all bytes and of pairs of bytes, with so many tokens in all."""
    pairs = [number.to_bytes(2, "big") for number in range(vocab_size - 257)]
    return Tokenizer("bpe", [*(bytes([each]) for each in range(256)), *pairs])


def make_large(folder: Path, n_bytes: int) -> Prepared:
    """A data set of so many bytes of token shards, bytes as tokens: one shard that all others are links to.

    What is in it costs no time to train on, so the same tokens come again and again: making 10^8 would take a minute.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = DataConfig(name="text", source=str(folder / "text.txt"), dir=str(folder / "data"))
    tokenizer = Tokenizer("byte", [bytes([each]) for each in range(256)])
    whole, rest = divmod(n_bytes // 2, SHARD_TOKENS)
    count = SHARD_TOKENS if whole else rest
    tokens = np.resize(made_tokens(min(count, LARGE_TOKENS), 256), count)
    return _plant(data, tokenizer, tokens, val=made_tokens(5000, 256, seed=2), copies=max(1, whole))


def _plant(
    data: DataConfig, tokenizer: Tokenizer, train: NDArray[np.uint16], *, val: NDArray[np.uint16], copies: int = 1
) -> Prepared:
    """Put these tokens where those of a small text are kept; whoever prepares that text finds them."""
    assert data.source is not None
    Path(data.source).write_text("these tokens were made, not read\n" * 20)
    kept = prepare(data, TokenizerConfig(name="byte"), say=lambda _: None)
    folder = kept.folder
    save_json(folder / "tokenizer.json", tokenizer.to_json())
    sidecars = {
        name: _write(SplitWriter(folder, name, tokenizer=tokenizer, shard_tokens=SHARD_TOKENS), tokens)
        for name, tokens in (("train", train), ("val", val))
    }
    if copies > 1:
        sidecars["train"] = _multiply(folder, sidecars["train"], copies, tokenizer)
    whole = fingerprint([sidecars["train"]["fingerprint"], sidecars["val"]["fingerprint"]])
    counts = {name: {"tokens": sidecar["tokens"], "bytes": sidecar["bytes"]} for name, sidecar in sidecars.items()}
    content = json.loads((folder / "prepared.json").read_bytes())
    summary = content["summary"] | counts | {"vocab_size": tokenizer.vocab_size}
    save_json(folder / "prepared.json", content | {"fingerprint": whole, "summary": summary})
    train_split, val_split = (TokenSplit(folder, name, tokenizer=tokenizer) for name in ("train", "val"))
    return Prepared(folder, tokenizer, train_split, val_split, whole, summary)


def _write(split: SplitWriter, tokens: NDArray[np.uint16]) -> dict[str, Any]:
    """Write a split whole, a byte of text behind each token."""
    with split as writer:
        writer.write(tokens, len(tokens))
        return writer.finish()


def _multiply(folder: Path, sidecar: dict[str, Any], copies: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The sidecar of a split whose one full shard comes so many times, under names of its own."""
    (entry,) = sidecar["shards"]
    shards = [entry | {"file": f"train-{number:03d}.bin"} for number in range(copies)]
    for shard in shards[1:]:
        os.link(folder / entry["file"], folder / shard["file"])
    marks = fingerprint([tokenizer.hash, *(shard["sha256"] for shard in shards)])
    changed = {"tokens": copies * entry["tokens"], "bytes": copies * entry["tokens"], "shards": shards}
    sidecar = sidecar | changed | {"fingerprint": marks}
    save_json(folder / "train.json", sidecar)
    return sidecar


def chunks(split: TokenSplit, size: int = 1 << 22) -> Iterator[NDArray[np.uint16]]:
    """A split's tokens, piece by piece."""
    for start in range(0, len(split), size):
        yield split.tokens(start, start + size)
