"""The first reading of a text: it is checked and counted, and a sample of it is kept to learn a vocabulary from."""

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from minigpt.data.preparing.units import Unit
from minigpt.data.readers.document import BadFile, Document
from minigpt.data.sources.split import HASHES, count_characters, hash_of
from minigpt.data.tokenizers.scheme import RUN_BYTES, runs
from minigpt.seeds import fold

BLOCK_BYTES = 1 << 14  # a sample is made of blocks of this size


@dataclass
class Scan:
    """What a reading of a unit, or of several, has found."""

    counts: Counter[str] = field(default_factory=Counter)  # documents, bytes, characters, empty, not_utf8
    first: dict[str, str] = field(default_factory=dict)  # label of the first document that is empty, or not_utf8
    bad: list[str] = field(default_factory=list)  # a sentence for each file that can't be read
    alphabet: set[str] = field(default_factory=set)
    hashes: tuple[int, int] = (HASHES, -1)  # the lowest and the highest of documents with text
    sample: list[tuple[int, int, bytes]] = field(default_factory=list)  # document's hash, characters before, a block

    def add(self, other: "Scan") -> None:
        """Add what was found in the next unit. (Its sample and its hashes stay its own.)"""
        self.counts += other.counts
        self.first = other.first | self.first
        self.bad += [sentence for sentence in other.bad if sentence not in self.bad]
        self.alphabet |= other.alphabet


def scan_unit(unit: Unit, *, rule: str, val_fraction: float, alphabet: bool, sampled: float) -> Scan:
    """Read a unit.

    Args:
        unit: of the text.
        rule: of the split, which takes documents by their hash.
        val_fraction: of the hashes that are for validation.
        alphabet: whether the characters are collected.
        sampled: the fraction of the text that is kept to learn from.
    """
    scan, raw = Scan(), unit.options.raw and not unit.options.chat
    for part in unit.parts:
        try:
            for document in part.documents(unit.options):
                hash, chunks = hash_of(document, rule, is_val=part.file.is_val)
                before = scan.counts["bytes"]
                counted = _count(document, chunks, scan, alphabet, alphabet or raw)
                if sampled:
                    _sample(counted, hash, scan, sampled, unit.number)
                for _ in counted:
                    pass
                if size := scan.counts["bytes"] - before:
                    scan.hashes = min(scan.hashes[0], hash), max(scan.hashes[1], hash)
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
    """Keep the blocks of a document that are drawn: the same on every machine."""
    characters = scan.counts["characters"]
    for block in runs(chunks, RUN_BYTES if sampled >= 1 else BLOCK_BYTES):
        scan.counts["blocks"] += 1
        if sampled >= 1 or fold(unit << 32 | scan.counts["blocks"]) < sampled * 2**63:
            scan.sample.append((hash, characters, block))
        characters += count_characters(block)
