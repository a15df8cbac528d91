"""Make prepared tokens: tokenizer, shards, sidecars and summary of one corpus, into one folder."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import TokenizerConfig
from minigpt.data.corpus import Corpus, SourceGone
from minigpt.data.reading import Span, Survey, describe_split, first_bytes, read, split, text_bytes
from minigpt.data.shards import fingerprint, write_split
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, encoder_of
from minigpt.faults import UserFault
from minigpt.rundir.files import write_file

Say = Callable[[str], object]

FORMAT = "minigpt-prepared"
LEARN_BYTES = 1 << 27  # a BPE vocabulary is learned from so much of the training text at most: a minute or less
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Source:
    """A corpus that has been read."""

    corpus: Corpus
    found: Survey
    signature: str  # of its files when they were read
    tokenizer: Tokenizer | None  # where it isn't learned from the text


def make(folder: Path, keys: dict[str, Any], source: Source, *, config: TokenizerConfig, say: Say) -> None:
    """Write everything into `folder`, prepared.json last. No one else may be writing there.

    Raises:
        UserFault: a split would be empty, the vocabulary impossible, or the source changed since it was surveyed.
        OSError: a file can't be written.
    """
    for left_over in folder.glob("*.tmp"):  # of a process that was killed: the lock is ours
        left_over.unlink(missing_ok=True)
    corpus, found = source.corpus, source.found
    train, val = split(corpus, found, keys["val_fraction"])
    tokenizer = _build(config, source, train, say)
    progress = progress_lines(f"encoding with tokenizer={config.name}", sum(found.bytes), say)
    sidecars = [
        write_split(
            folder, name, _encode(corpus, spans, tokenizer, progress), text_bytes=text_bytes(spans), tokenizer=tokenizer
        )
        for name, spans in (("train", train), ("val", val))
    ]
    if signature(corpus) != source.signature:
        raise UserFault("the source was changed while it was read; wait until it is complete and run this again")
    save_json(folder / "tokenizer.json", tokenizer.to_json())
    content = {
        "format": FORMAT,
        "keys": keys,
        "signature": source.signature,
        "fingerprint": fingerprint([sidecar["fingerprint"] for sidecar in sidecars]),
        "summary": _summary(keys, source, sidecars, tokenizer=tokenizer, wanted=config.vocab_size),
    }
    save_json(folder / "prepared.json", content)


def _build(config: TokenizerConfig, source: Source, train: list[Span], say: Say) -> Tokenizer:
    if source.tokenizer:
        return source.tokenizer
    learn = first_bytes(train, LEARN_BYTES)
    total = text_bytes(learn)
    if encoder_of(config.name).min_vocab_size:
        say(f"data: learning {config.vocab_size:,} tokens from {size_text(total)} of the training text")
    progress = progress_lines("learning", total, say)
    return build_tokenizer(
        config.name,
        vocab_size=config.vocab_size,
        alphabet=source.found.alphabet,
        train=(_counted(read(source.corpus, span), progress) for span in learn),
    )


def _encode(
    corpus: Corpus, spans: list[Span], tokenizer: Tokenizer, progress: Callable[[int], None]
) -> Iterator[NDArray[Any]]:
    """The tokens of a split, end-of-text between its documents."""
    for number, span in enumerate(spans):
        if number and tokenizer.eot is not None:
            yield np.array([tokenizer.eot], dtype=tokenizer.dtype)
        yield from tokenizer.encode_chunks(_counted(read(corpus, span), progress))


def _counted(chunks: Iterator[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        progress(len(chunk))


def _summary(
    keys: dict[str, Any], source: Source, sidecars: list[dict[str, Any]], *, tokenizer: Tokenizer, wanted: int
) -> dict[str, Any]:
    found = source.found
    notes = list(source.corpus.notes)
    if found.crlf:
        notes.append(f"{found.crlf:,} lines end in CR LF; they are kept as they are")
    if found.marks:
        notes.append(f"{found.marks:,} documents begin with a byte-order mark; data.encoding=utf-8-sig drops it")
    if found.nul:
        notes.append(f"{found.nul:,} NUL bytes; they are kept as they are")
    if encoder_of(tokenizer.name).min_vocab_size and source.tokenizer is None and tokenizer.vocab_size < wanted:
        notes.append(f"the text yields {tokenizer.vocab_size:,} BPE tokens, fewer than tokenizer.vocab_size={wanted:,}")
    train, val = sidecars
    total = sum(found.bytes)
    return {
        "corpus": keys["corpus"],
        "source": keys["source"],
        "python": keys["python"],
        "documents": len(source.corpus.documents),
        "bytes": total,
        "characters": sum(found.characters),
        "sha256": found.sha256,
        "split": describe_split(keys["corpus"], keys["val_fraction"]),
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "train": {"tokens": train["tokens"], "bytes": train["bytes"]},
        "val": {"tokens": val["tokens"], "bytes": val["bytes"]},
        "bytes_per_token": total / (train["tokens"] + val["tokens"]),
        "notes": notes,
    }


def signature(corpus: Corpus) -> str:
    """A hash of the names, sizes and times of a corpus's files as they are now.

    Raises:
        SourceGone: one of them is gone.
    """
    try:
        status = [(document.label, document.path.stat()) for document in corpus.documents]
    except OSError as error:
        raise SourceGone(f"{error.filename} is gone") from None
    listing = [(label, entry.st_size, entry.st_mtime_ns) for label, entry in status]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def save_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_file(path, json.dumps(content, indent=1) + "\n")


def size_text(n_bytes: int) -> str:
    """Bytes for people."""
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 1e6 else f"{n_bytes:,} bytes"


def progress_lines(what: str, total: int, say: Say) -> Callable[[int], None]:
    """A function to call with numbers of bytes done; it says a line every few seconds of long work."""
    begun = said = time.monotonic()
    done = 0

    def step(n_bytes: int) -> None:
        nonlocal done, said
        done += n_bytes
        now = time.monotonic()
        if now - said >= PROGRESS_SECONDS:
            said, rate = now, done / (now - begun)
            left = max(0, total - done) / rate
            say(f"data: {what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, {left:.0f} s left")

    return step
