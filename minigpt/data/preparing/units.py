"""Units of work: parts of files of about the same size, whatever the number of workers.

Each is read twice: `scan_unit` checks and counts it, and keeps a sample to learn a vocabulary from; `encode_unit` makes
it a shard of each split, written whole or not at all.
"""

import codecs
import contextlib
import functools
import itertools
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.chat.roles import encode_marked
from minigpt.data.readers import can_be_cut, holds_records, read
from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.shards import HEADER_BYTES, HEADS, Shard, shard_name
from minigpt.data.sources.corpus import Corpus
from minigpt.data.sources.split import FEW_DOCUMENTS, HASHES, count_characters, hash_of, offset
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.data.tokenizers.scheme import END_OF_TEXT, RUN_BYTES, runs
from minigpt.faults import UserFault
from minigpt.files import read_json, replaced, sha256_of, write_json
from minigpt.seeds import fold

UNIT_BYTES = 1 << 23  # of files; larger if there were more than MAX_UNITS
MAX_UNITS = 256
WINDOW_BYTES = 1 << 20  # read to find a place where a text may be cut
BLOCK_BYTES = 1 << 14  # a sample is made of blocks of this size
UNITS = "units"  # folder with a record of each finished unit, removed at the end

Runs = Callable[[Iterable[bytes]], Iterator[bytes]]  # cuts a text into pieces that can be encoded alone
Append = Callable[[NDArray[Any]], None]  # of tokens, to a shard


@dataclass(frozen=True)
class Part:
    """Bytes begin ... end - 1 of a file; without an end, all that follow."""

    file: File
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Unit:
    """Consecutive parts of the files of a corpus."""

    number: int
    parts: tuple[Part, ...]
    options: ReadOptions

    @property
    def size(self) -> int:
        """Bytes of its parts on the disk."""
        return sum((part.file.size if part.end is None else part.end) - part.begin for part in self.parts)


def units_of(corpus: Corpus, pieces: Runs) -> list[Unit]:
    """Divide a corpus into units: by its files alone, so that each command and machine gets the same."""
    count = min(MAX_UNITS, max(1, -(-corpus.size // UNIT_BYTES)))
    limit = max(1, -(-corpus.size // count))
    units: list[list[Part]] = [[]]
    room = limit
    for file in corpus.files:
        begin: int | None = 0
        while begin is not None:
            if room <= 0:
                units.append([])
                room = limit
            end = _cut(file, begin + room, corpus.options, pieces) if file.size - begin > room else None
            units[-1].append(Part(file, begin, end))
            room -= (file.size if end is None else end) - begin
            begin = end
    return [Unit(number, tuple(parts), corpus.options) for number, parts in enumerate(units)]


def _cut(file: File, place: int, options: ReadOptions, pieces: Runs) -> int | None:
    """Return where a file can be cut near a place, or None. The reader of a file with records finds their borders."""
    if not can_be_cut(file, options):
        return None
    if holds_records(file, options):
        return place
    window = next(file.chunks(place, size=WINDOW_BYTES), b"")
    run = next(iter(pieces([window])), b"")
    return place + len(run) if len(run) < len(window) else None


# --- the first reading ---


@dataclass
class Scan:
    """Counts and samples from reading a unit."""

    counts: Counter[str] = field(default_factory=Counter)  # documents, bytes, characters, separators, empty, not_utf8
    first: dict[str, str] = field(default_factory=dict)  # label of the first document that is empty, or not_utf8
    bad: list[str] = field(default_factory=list)  # a sentence for each file that can't be read
    alphabet: set[str] = field(default_factory=set)
    begins: list[int] = field(default_factory=list)  # characters before the first FEW_DOCUMENTS that begin in it
    hashes: tuple[int, int] = (HASHES, -1)  # the lowest and the highest of documents with text
    sample: list[tuple[int, int, bytes]] = field(default_factory=list)  # document's hash, characters before, a block


def scan_unit(unit: Unit, *, rule: str, val_fraction: float, alphabet: bool, sampled: float) -> Scan:
    """Read a unit.

    Args:
        unit: part of the text.
        rule: of the split (minigpt/data/sources/split.py).
        val_fraction: the fraction of the hashes that is held out.
        alphabet: whether the characters are collected.
        sampled: the fraction of the text that is kept to learn from.
    """
    scan, raw = Scan(), unit.options.raw and not unit.options.chat
    for part in unit.parts:
        try:
            for document in read(part.file, unit.options, part.begin, part.end):
                hash, chunks = hash_of(document, rule, is_val=part.file.is_val)
                before, begin = scan.counts["bytes"], scan.counts["characters"]
                counted = _count(document, chunks, scan, alphabet, alphabet or raw)
                if sampled:
                    _sample(counted, hash, scan, sampled, unit.number)
                for _ in counted:
                    pass
                if size := scan.counts["bytes"] - before:
                    scan.hashes = min(scan.hashes[0], hash), max(scan.hashes[1], hash)
                    if document.head is None and len(scan.begins) < FEW_DOCUMENTS:
                        scan.begins.append(begin)
                    scan.counts["val_bytes"] += size * (hash < val_fraction * HASHES)
        except BadFile as fault:
            scan.bad.append(str(fault))
    return scan


def _count(document: Document, chunks: Iterable[bytes], scan: Scan, alphabet: bool, decodes: bool) -> Iterator[bytes]:
    """Yield the chunks of a document, and count it."""
    counts, decoder, size, broken = scan.counts, codecs.getincrementaldecoder("utf-8")(), 0, False
    for chunk in chunks:
        size += len(chunk)
        counts["bytes"] += len(chunk)
        counts["characters"] += count_characters(chunk)
        counts["separators"] += chunk.count(END_OF_TEXT.encode())
        if decodes:
            try:
                text = decoder.decode(chunk)
                scan.alphabet.update(text if alphabet else "")
            except UnicodeDecodeError:
                decodes, broken = False, True
        yield chunk
    if broken or decoder.getstate()[0]:  # or a character is cut at the end
        counts["not_utf8"] += 1
        scan.first.setdefault("not_utf8", document.label)
    counts["documents"] += size > 0 and document.head is None
    if not size:
        counts["empty"] += 1
        scan.first.setdefault("empty", document.label)


def _sample(chunks: Iterable[bytes], hash: int, scan: Scan, sampled: float, unit: int) -> None:
    """Keep a random sample of a document's blocks: the same on every machine."""
    characters = scan.counts["characters"]
    for block in runs(chunks, RUN_BYTES if sampled >= 1 else BLOCK_BYTES):
        scan.counts["blocks"] += 1
        if sampled >= 1 or fold(unit << 32 | scan.counts["blocks"]) < sampled * 2**63:
            scan.sample.append((hash, characters, block))
        characters += count_characters(block)


# --- the second reading ---


@dataclass(frozen=True)
class SplitPlan:
    """How a text is divided, found by reading all of it.

    Attributes:
        rule: of the split (minigpt/data/sources/split.py).
        border: hash below which whole documents are for validation.
        tails: tail, tails: first and last + 1 of the characters for validation, counted in all text joined.
        starts: the characters before each unit.
        shards: for each unit, the number of its shard in each split that it has text for.
        counts: of the whole text.
        notes: sentences for the user about surprises in the text.
    """

    rule: str
    border: float
    tails: list[tuple[int, int]]
    starts: list[int]
    shards: list[dict[str, int]]
    counts: dict[str, int]
    notes: list[str]


def val_begin(plan: SplitPlan, hash: int, place: int) -> int:
    """Return the character from which on a document is for validation; `place` is a character of the document."""
    if plan.tails:
        return next((begin for begin, end in plan.tails if place < end), place)
    return -1 if hash < plan.border else sys.maxsize


def encode_unit(unit: Unit, *, folder: Path, plan: SplitPlan) -> dict[str, Shard]:
    """Write the shards of a unit into a folder that holds the tokenizer, unless they are finished; describe them.

    Raises:
        UserFault: a character that the tokenizer does not know.
        OSError: a shard can't be written.
    """
    record = folder / UNITS / f"{unit.number:03d}.json"
    with contextlib.suppress(UserFault, OSError, LookupError, TypeError):
        finished: dict[str, Shard] = read_json(record)
        if all(sha256_of(folder / shard["file"]) == shard["sha256"] for shard in finished.values()):
            return finished
    tokenizer = _tokenizer(folder)
    with contextlib.ExitStack() as stack:
        numbers = plan.shards[unit.number].items()
        shards = {name: stack.enter_context(_shard(folder, name, number, tokenizer)) for name, number in numbers}
        begun, sizes = {name for name, number in numbers if number}, Counter[str]()
        for (_, continues, name), pieces in itertools.groupby(_pieces(unit, plan, sizes), itemgetter(0, 1, 2)):
            _, write = shards[name]
            if name in begun and not continues and tokenizer.eot is not None:
                write(np.array([tokenizer.eot]))
            if tokenizer.start and not continues:
                write(np.array(tokenizer.start))
            begun.add(name)
            chunks, is_chat = map(itemgetter(3), pieces), unit.options.chat
            for tokens in encode_marked(tokenizer, b"".join(chunks)) if is_chat else tokenizer.encode_chunks(chunks):
                write(tokens)
    written = {name: facts | {"bytes": sizes[name]} for name, (facts, _) in shards.items()}
    write_json(record, written)
    return written


def _pieces(unit: Unit, plan: SplitPlan, sizes: Counter[str]) -> Iterator[tuple[int, bool, str, bytes]]:
    """Yield the text of a unit: number of the document, whether it continues, train | val, and a chunk.

    It continues if its text for this split began in another unit. The bytes of each split are counted in `sizes`.
    """
    place = plan.starts[unit.number]
    texts = ((part, text) for part in unit.parts for text in read(part.file, unit.options, part.begin, part.end))
    for number, (part, document) in enumerate(texts):
        hash, chunks = hash_of(document, plan.rule, is_val=part.file.is_val)
        begin = val_begin(plan, hash, place)
        continues = {"train": document.head is not None, "val": document.head is not None and begin < place}
        for chunk in filter(None, chunks):
            cut = offset(chunk, begin - place)
            place += count_characters(chunk)
            for name, text in (("train", chunk[:cut]), ("val", chunk[cut:])):
                if text:
                    sizes[name] += len(text)
                    yield number, continues[name], name, text


@contextlib.contextmanager
def _shard(folder: Path, split: str, number: int, tokenizer: Tokenizer) -> Iterator[tuple[Shard, Append]]:
    """Yield a shard's record and a function that appends tokens; the file gets its name if no error occurs."""
    dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
    shard: Shard = {"file": shard_name(split, number), "dtype": dtype.name, "header_bytes": HEADER_BYTES, "tokens": 0}
    with replaced(folder / shard["file"]) as temporary:
        with open(temporary, "xb") as file:

            def write(tokens: NDArray[Any]) -> None:
                shard["tokens"] += len(tokens)
                file.write(np.ascontiguousarray(tokens, dtype).data)

            file.write(bytes(HEADER_BYTES))
            yield shard, write
            file.seek(0)
            file.write(struct.pack("<3i", *HEADS[dtype.name], shard["tokens"]))
        shard["sha256"] = sha256_of(temporary)


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of the shards in a folder, read once in each process."""
    path = folder / "tokenizer.json"
    return load_tokenizer(read_json(path), path)
