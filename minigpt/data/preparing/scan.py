"""The first reading of a text: it is checked and counted, and a sample of it is kept to learn a vocabulary from."""

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minigpt.data.preparing.units import Unit
from minigpt.data.readers.document import BadFile, Document
from minigpt.data.sources.split import BUCKETS, HASHES, count_characters, hash_of
from minigpt.data.tokenizers.scheme import RUN_BYTES, runs
from minigpt.seeds import fold

BLOCK_BYTES = 1 << 14  # a sample is made of blocks of this size


@dataclass(frozen=True)
class ScanJob:
    """A unit to read, and what is wanted of it."""

    unit: Unit
    rule: str
    val_fraction: float
    alphabet: bool  # the characters
    sampled: float  # the fraction of the text that is kept to learn from; 0: none


class Block(NamedTuple):
    """A piece of a document, and what says whether it is for training."""

    text: bytes
    hash: int  # of the document
    characters: int  # of the unit before it
    bytes: int


@dataclass
class Scan:
    """What a reading of a unit, or of several, has found."""

    counts: Counter[str] = field(
        default_factory=Counter
    )  # documents, bytes, characters, and what a user may not expect
    first: dict[str, str] = field(default_factory=dict)  # the first document without text, and the first not in UTF-8
    bad: list[str] = field(default_factory=list)  # a sentence for each file that can't be read
    alphabet: set[str] = field(default_factory=set)
    buckets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))  # see `fair_border`
    lowest: int = HASHES  # hash of a document with text
    highest: int = -1
    sample: list["Block"] = field(default_factory=list)

    def add(self, other: "Scan") -> None:
        """Add what was found in the next unit. (Its sample stays its own.)"""
        self.counts += other.counts
        self.first = other.first | self.first
        self.bad += [sentence for sentence in other.bad if sentence not in self.bad]
        self.alphabet |= other.alphabet
        self.buckets += other.buckets


def scan_unit(job: ScanJob) -> Scan:
    """Read a unit."""
    scan, unit = Scan(), job.unit
    counts, options = scan.counts, unit.options
    for part in unit.parts:
        try:
            for file, document in Unit(unit.number, (part,), options).documents():
                number, chunks = hash_of(document, job.rule, is_val=file.is_val)
                before = counts["bytes"]
                counted = _count(document, chunks, scan, job)
                if job.sampled:
                    _sample(counted, number, scan, job)
                else:
                    for _ in counted:
                        pass
                size = counts["bytes"] - before
                if size:
                    scan.lowest, scan.highest = min(scan.lowest, number), max(scan.highest, number)
                    scan.buckets[number * BUCKETS // HASHES] += size
                    counts["val_bytes"] += size * (number < job.val_fraction * HASHES)
        except BadFile as fault:
            scan.bad.append(str(fault))
    return scan


def _count(document: Document, chunks: Iterable[bytes], scan: Scan, job: ScanJob) -> Iterator[bytes]:
    """Yield the chunks of a document, and count it."""
    counts, options = scan.counts, job.unit.options
    decoder = codecs.getincrementaldecoder("utf-8")() if job.alphabet or options.raw else None
    last, size = b"", 0
    for chunk in chunks:
        if not size and document.head is None:
            counts["marks"] += chunk.startswith(codecs.BOM_UTF8)
        size += len(chunk)
        counts["bytes"] += len(chunk)
        counts["characters"] += count_characters(chunk)
        if b"\r" in chunk or last == b"\r":  # to look for one byte is ten times as fast as to count two
            counts["crlf"] += chunk.count(b"\r\n") + (last == b"\r" and chunk.startswith(b"\n"))
        if b"\0" in chunk:
            counts["nul"] += chunk.count(0)
        if options.errors == "replace":
            counts["replaced"] += chunk.count("\ufffd".encode())
        counts["visible"] += not chunk.isspace()
        last = chunk[-1:]
        if decoder:
            try:
                text = decoder.decode(chunk)
                scan.alphabet.update(text if job.alphabet else "")
            except UnicodeDecodeError:
                counts["not_utf8"] += 1
                scan.first.setdefault("not_utf8", document.label)
                decoder = None
        yield chunk
    if decoder and decoder.getstate()[0]:
        counts["not_utf8"] += 1
        scan.first.setdefault("not_utf8", document.label)
    if size:
        counts["documents"] += document.head is None
    else:
        counts["empty"] += 1
        scan.first.setdefault("empty", document.label)


def _sample(chunks: Iterable[bytes], number: int, scan: Scan, job: ScanJob) -> None:
    """Keep the blocks of a document that are drawn: the same on every machine."""
    characters, size = scan.counts["characters"], scan.counts["bytes"]
    for text in runs(chunks, RUN_BYTES if job.sampled >= 1 else BLOCK_BYTES):
        scan.counts["blocks"] += 1
        if job.sampled >= 1 or fold(job.unit.number << 32 | scan.counts["blocks"]) < job.sampled * 2**63:
            scan.sample.append(Block(text, number, characters, size))
        characters += count_characters(text)
        size += len(text)
