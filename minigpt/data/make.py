"""Make prepared tokens: tokenizer, shards, sidecars and summary of one corpus, into one folder."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.data.in_place import RULE, link
from minigpt.data.shards import SplitWriter, fingerprint
from minigpt.data.split import describe_split, small_split, split
from minigpt.data.survey import Survey, signature
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.faults import UserFault
from minigpt.rundir.files import write_json

Say = Callable[[str], object]

FORMAT = "minigpt-prepared"
LEARN_BYTES = 1 << 27  # a BPE vocabulary is learned from so much of the training text at most: a minute or less
PROGRESS_SECONDS = 5.0


def make(folder: Path, keys: dict[str, Any], found: Survey, *, given: Tokenizer | None, say: Say) -> None:
    """Write everything into `folder`, prepared.json last. No one else may be writing there.

    Args:
        folder: an existing folder.
        keys: what decides the tokens besides the text, as prepared.json keeps it.
        found: the text.
        given: the tokenizer; without one it is learned from the text.
        say: takes lines for the user.

    Raises:
        UserFault: a split would be empty, the vocabulary impossible, or the source changed since it was surveyed.
        OSError: a file can't be written.
    """
    tokenizer = given or _learn(keys, found, say)
    if found.tokens:
        sidecars = link(folder, found, tokenizer)
    else:
        sidecars = _encode(folder, found, keys["val_fraction"], tokenizer, say)
    if signature(found.corpus) != found.signature or sum(sidecar["bytes"] for sidecar in sidecars) != found.bytes:
        raise UserFault("the source was changed while it was read; wait until it is complete and run this again")
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    content = {
        "format": FORMAT,
        "keys": keys,
        "signature": found.signature,
        "fingerprint": fingerprint([sidecar["fingerprint"] for sidecar in sidecars]),
        "summary": _summary(keys, found, sidecars, tokenizer),
    }
    write_json(folder / "prepared.json", content)


def _learn(keys: dict[str, Any], found: Survey, say: Say) -> Tokenizer:
    """A tokenizer learned from the training text."""
    total, vocab_size = min(LEARN_BYTES, found.bytes), keys["vocab_size"] or 0
    if vocab_size:
        say(f"data: learning {vocab_size:,} tokens from up to {size_text(total)} of the training text")
    train = _training_text(found, keys["val_fraction"], progress_lines("data: learning", total, say))
    return build_tokenizer(keys["tokenizer"], vocab_size=vocab_size, alphabet=found.alphabet, train=train)


def _training_text(found: Survey, val_fraction: float, progress: Callable[[int], None]) -> Iterator[Iterator[bytes]]:
    """The first LEARN_BYTES of the training text, each document as chunks."""
    left = LEARN_BYTES

    def first(chunks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal left
        for chunk in chunks:
            part = chunk[:left]
            left -= len(part)
            yield part
            progress(len(part))
            if not left:
                return

    for name, chunks in split(found, val_fraction):
        if name == "train":
            yield first(chunks)
        if not left:
            return


def _encode(folder: Path, found: Survey, val_fraction: float, tokenizer: Tokenizer, say: Say) -> list[dict[str, Any]]:
    """Write the tokens of both splits, end-of-text between documents, and return their sidecars."""
    progress = progress_lines(f"data: encoding with tokenizer={tokenizer.name}", found.bytes, say)
    with (
        SplitWriter(folder, "train", tokenizer=tokenizer) as train,
        SplitWriter(folder, "val", tokenizer=tokenizer) as val,
    ):
        writers = {"train": train, "val": val}

        def counted(writer: SplitWriter, chunks: Iterator[bytes]) -> Iterator[bytes]:
            for chunk in chunks:
                yield chunk
                writer.bytes += len(chunk)
                progress(len(chunk))

        for name, chunks in split(found, val_fraction):
            writer = writers[name]
            if writer.tokens and tokenizer.eot is not None:
                writer.write(np.array([tokenizer.eot]))
            for tokens in tokenizer.encode_chunks(counted(writer, chunks)):
                writer.write(tokens)
        for name, writer in writers.items():
            if writer.tokens < 2:
                got = f"{writer.tokens} token" if writer.tokens else "no text"
                raise small_split(name, got, val_fraction)
        return [writer.finish() for writer in writers.values()]


def _summary(keys: dict[str, Any], found: Survey, splits: list[dict[str, Any]], tokenizer: Tokenizer) -> dict[str, Any]:
    wanted = keys["vocab_size"] or 0
    train, val = ({key: sidecar[key] for key in ("tokens", "bytes")} for sidecar in splits)
    notes = [*found.corpus.notes, *found.notes()]
    if tokenizer.vocab_size < wanted:
        notes.append(f"the text yields {tokenizer.vocab_size:,} BPE tokens, fewer than tokenizer.vocab_size={wanted:,}")
    if tokenizer.rules and tokenizer.rules.nfc:
        notes.append("the tokenizer brings text into Unicode's form NFC: other forms are not kept byte by byte")
    if train["tokens"] <= 1024:
        notes.append(f"so few tokens allow model.block_size={train['tokens'] - 1} at most")
    rule = describe_split(keys["corpus"], keys["val_fraction"], keys.get("val_source"))
    return {
        **{key: keys[key] for key in ("corpus", "source", "python")},
        **{key: getattr(found, key) for key in ("documents", "bytes", "characters", "sha256")},
        "split": RULE if found.tokens else rule,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "train": train,
        "val": val,
        "notes": notes,
    }


def size_text(n_bytes: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 1e6 else f"{n_bytes:,} bytes"


def progress_lines(what: str, total: int, say: Say, *, unit: str = "MB", size: float = 1e6) -> Callable[[int], None]:
    """Return a function to call with numbers of bytes (or of what else `unit` counts by `size`) done.

    It says a line every few seconds of long work.
    """
    begun = said = time.monotonic()
    done = 0

    def step(count: int) -> None:
        nonlocal done, said
        done += count
        now = time.monotonic()
        if now - said >= PROGRESS_SECONDS:
            said, rate = now, done / (now - begun)
            left = max(0, total - done) / rate
            shown = f"{done / size:,.0f} of {total / size:,.0f} {unit}, {rate / size:,.1f} {unit}/s"
            say(f"{what}: {shown}, {left:,.0f} s left")

    return step
