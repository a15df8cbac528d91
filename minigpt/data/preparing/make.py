"""Make prepared tokens: tokenizer, shards, sidecars and summary of one corpus, in one folder.

Unfinished work is in UNITS: the tokenizer and the units of work (units.py). A process that comes later goes on from it.
"""

import contextlib
import itertools
import shutil
import time
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config.schema import WorkConfig
from minigpt.data.chat.roles import with_roles
from minigpt.data.measures.overlap import measure, measured_lines
from minigpt.data.preparing.in_place import RULE, link
from minigpt.data.preparing.ray_engine import encode_on_ray
from minigpt.data.preparing.units import Engine, assemble, count_units, cut, make_units
from minigpt.data.preparing.workers import encode_in_processes
from minigpt.data.shards import SplitWriter, fingerprint
from minigpt.data.sources.split import describe_split, small_split, split
from minigpt.data.sources.survey import Survey, signature
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, load_tokenizer
from minigpt.data.tokenizers.scheme import runs
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import read_json, write_json
from minigpt.ranks.cores import usable_cores
from minigpt.screen import Progress, Say, size_text, time_text
from minigpt.splitmix import fold

FORMAT = "minigpt-prepared"
UNITS = "units"
LEARN_BYTES = 1 << 27  # a BPE vocabulary is learned from at most so much of the training text: a minute or less
BLOCK_BYTES = 1 << 14  # a sample of the training text is made of blocks of this size
PROBE_BYTES = 1 << 18  # encoded first, to estimate time and disk
SMALL_BYTES = 1_000_000  # for less text no time is estimated


def stored_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer that unfinished work in `folder` was begun with."""
    path = folder / UNITS / "tokenizer.json"
    with contextlib.suppress(UserFault):
        content = read_json(path)
        tokenizer = load_tokenizer(content)
        return tokenizer if content.get("sha256") == tokenizer.hash else None
    return None


def learn(folder: Path, keys: dict[str, Any], found: Survey, *, given: Tokenizer | None, say: Say) -> Tokenizer:
    """Learn a tokenizer from the training text, unless one is given; store it for all processes that work on `folder`.

    Raises:
        UserFault: a split would be empty, or the vocabulary impossible.
        OSError: a file can't be written.
    """
    tokenizer = given
    if tokenizer is None:
        vocab_size = keys["vocab_size"] or 0
        train = _text_to_learn_from(found, keys["val_fraction"], vocab_size, say)
        tokenizer = build_tokenizer(keys["tokenizer"], vocab_size=vocab_size, alphabet=found.alphabet, train=train)
    if found.corpus.options.chat:
        tokenizer = with_roles(tokenizer)
    (folder / UNITS).mkdir(exist_ok=True)
    write_json(folder / UNITS / "tokenizer.json", tokenizer.to_json() | {"sha256": tokenizer.hash})
    return tokenizer


def encode(
    folder: Path, found: Survey, val_fraction: float, tokenizer: Tokenizer, *, work: WorkConfig, say: Say
) -> Generator[str, None, None]:
    """Make the units of a text that are not there yet; yield the identities of all, in order, as `make_units` does.

    A corpus of tokens has no units.

    Raises:
        UserFault: a split would be empty, or the source changed since it was surveyed.
        StorageFailure: the disk would not hold the tokens.
        OSError: a file can't be written.
    """
    if found.tokens:
        return
    units = folder / UNITS
    share = share_of(work.part)
    count = processes_for(work, found.bytes // share[1])
    engine: Engine | None = None
    if work.engine == "ray":
        engine = partial(encode_on_ray, tokenizer=tokenizer)
    elif count > 1:
        engine = partial(encode_in_processes, count=count, tokenizer=units / "tokenizer.json")
    _tell_cost(folder, found, val_fraction, tokenizer, count=count * share[1], say=say)
    progress = Progress(f"data: encoding with tokenizer={tokenizer.name}", found.bytes // share[1], say)
    frames = cut(split(found, val_fraction), tokenizer, chat=found.corpus.options.chat)
    yield from make_units(units, frames, tokenizer, engine=engine, part=share, progress=progress)


def seal(
    folder: Path, keys: dict[str, Any], found: Survey, *, tokenizer: Tokenizer, identities: Iterable[str], say: Say
) -> None:
    """Put the units together and write everything else, prepared.json last. No other process may be writing there.

    Args:
        folder: of the units.
        keys: what decides the tokens besides the text, as prepared.json keeps it.
        found: the text.
        tokenizer: that encoded it.
        identities: of the units, in order; each unit is appended when its identity has come (see `encode`).
        say: takes lines for the user.

    Raises:
        UserFault: a split would be empty, or the source changed since it was surveyed.
        StorageFailure: a unit was changed since it was made.
        OSError: a file can't be written.
    """
    if found.tokens:
        sidecars = link(folder, found, tokenizer)
    else:
        sidecars = _assemble(folder, identities, tokenizer, keys["val_fraction"])
    if signature(found.corpus) != found.signature or sum(sidecar["bytes"] for sidecar in sidecars) != found.bytes:
        raise UserFault("the source was changed while it was read; wait until it is complete and run this again")
    write_json(folder / "tokenizer.json", tokenizer.to_json())
    summary = _summary(keys, found, sidecars, tokenizer)
    for name, facts in measure(folder, tokenizer).items():
        summary[name] = summary.get(name, {}) | facts
    content = {
        "format": FORMAT,
        "keys": keys,
        "signature": found.signature,
        "fingerprint": fingerprint([sidecar["fingerprint"] for sidecar in sidecars]),
        "summary": summary,
    }
    write_json(folder / "prepared.json", content)
    for name, line in measured_lines(summary):
        say(f"data: {name}: {line}")


def share_of(part: str | None) -> tuple[int, int]:
    """Return (i - 1, n) of a part "i/n"; (0, 1) without one."""
    number, _, parts = (part or "1/1").partition("/")
    return int(number) - 1, int(parts)


def processes_for(work: WorkConfig, n_bytes: int) -> int:
    """Return how many processes encode `n_bytes` of text: no more than their start is worth."""
    units = count_units(n_bytes)
    return min(work.workers, units) if work.workers else min(usable_cores(), max(1, units // 2))


def _tell_cost(folder: Path, found: Survey, val_fraction: float, tokenizer: Tokenizer, *, count: int, say: Say) -> None:
    """Print the time and the disk space that encoding takes, estimated from the text's beginning.

    Raises:
        StorageFailure: the disk would not hold it.
    """
    probe = bytearray()
    for part in itertools.chain.from_iterable(chunks for _, chunks in split(found, val_fraction)):
        probe += part[:PROBE_BYTES]
        if len(probe) >= PROBE_BYTES:
            break
    first, chunk = (part.decode("utf-8", "ignore").encode() for part in (probe[:1000], probe))  # whole characters
    tokenizer.encode_bytes(first)  # the first call takes longer
    begun = time.monotonic()
    size = tokenizer.encode_bytes(chunk).nbytes / max(1, len(chunk)) * found.bytes
    seconds = (time.monotonic() - begun) / max(1, len(chunk)) * found.bytes / count
    there = sum(path.stat().st_size for path in (folder / UNITS).glob("*.unit"))
    seconds *= max(0.0, 1 - there / max(1, size))
    needed, free = max(0, 2 * size - there), shutil.disk_usage(folder).free
    cost = f"about {size_text(2 * size)} on the disk while it is made, {size_text(size)} of it kept"
    if needed > free:
        wrong = f"{folder} needs {cost}; the disk has {size_text(free)} left"
        raise StorageFailure(f"{wrong}. Make room there, or choose another folder: data.dir=DIR")
    many = f", {count} processes" if count > 1 else ""
    if found.bytes >= SMALL_BYTES:
        time_needed = f"about {time_text(seconds)}{many}"
        say(f"data: encoding {size_text(found.bytes)}: {time_needed}; {cost} ({size_text(free)} free)")


def _text_to_learn_from(found: Survey, val_fraction: float, vocab_size: int, say: Say) -> Iterator[Iterator[bytes]]:
    """Yield the training text, each document as chunks; a sample of blocks if it is longer than LEARN_BYTES."""

    def train() -> Iterator[Iterator[bytes]]:
        return (chunks for name, chunks in split(found, val_fraction) if name == "train")

    size = found.bytes
    if size > LEARN_BYTES:  # the training part alone may be shorter
        size = sum(len(chunk) for chunks in train() for chunk in chunks)
    is_whole = size <= LEARN_BYTES
    if vocab_size:
        shown = "up to" if is_whole else f"a random {size_text(LEARN_BYTES)} of"
        say(f"data: learning {vocab_size:,} tokens from {shown} {size_text(size)} of the training text")
    progress = Progress("data: learning", size, say)

    def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            progress(len(chunk))

    documents = map(counted, train())
    yield from documents if is_whole else sample_blocks(documents, LEARN_BYTES / size)


def sample_blocks(documents: Iterable[Iterable[bytes]], fraction: float) -> Iterator[Iterator[bytes]]:
    """Draw about a fraction of a text in blocks of up to BLOCK_BYTES: the same ones on every machine."""
    blocks = itertools.chain.from_iterable(runs(chunks, BLOCK_BYTES) for chunks in documents)
    return (iter([block]) for number, block in enumerate(blocks) if fold(number) < fraction * 2**63)


def _assemble(
    folder: Path, identities: Iterable[str], tokenizer: Tokenizer, val_fraction: float
) -> list[dict[str, Any]]:
    """Write the shards of both splits, and return their sidecars."""
    with (
        SplitWriter(folder, "train", tokenizer=tokenizer) as train,
        SplitWriter(folder, "val", tokenizer=tokenizer) as val,
    ):
        writers = {"train": train, "val": val}
        assemble(folder / UNITS, identities, writers)
        for name, writer in writers.items():
            if writer.tokens < 2:
                got = f"{writer.tokens} token" if writer.tokens else "no text"
                raise small_split(name, got, val_fraction)
        return [writer.finish() for writer in writers.values()]


def _summary(keys: dict[str, Any], found: Survey, splits: list[dict[str, Any]], tokenizer: Tokenizer) -> dict[str, Any]:
    wanted = keys["vocab_size"] or 0
    train, val = ({key: sidecar[key] for key in ("tokens", "bytes")} for sidecar in splits)
    notes = [*found.corpus.notes, *found.notes()]
    if wanted and train["bytes"] > LEARN_BYTES and "given" not in keys:
        notes.append(f"the vocabulary is learned from a random {size_text(LEARN_BYTES)} of the training text")
    if tokenizer.vocab_size < wanted:
        notes.append(f"the text yields {tokenizer.vocab_size:,} BPE tokens, fewer than tokenizer.vocab_size={wanted:,}")
    if tokenizer.rules and tokenizer.rules.nfc:
        notes.append("the tokenizer brings text into Unicode's form NFC: other forms are not kept byte by byte")
    if train["tokens"] <= 1024:
        notes.append(f"so few tokens allow model.block_size={train['tokens'] - 1} at most")
    rule = describe_split(found.rule, keys["val_fraction"], keys.get("val_source"))
    return {
        **{key: keys[key] for key in ("corpus", "source", "python")},
        **{key: getattr(found, key) for key in ("documents", "bytes", "characters", "sha256")},
        "split": RULE if found.tokens and "val_source" not in keys else rule,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "train": train,
        "val": val,
        "notes": notes,
    }
