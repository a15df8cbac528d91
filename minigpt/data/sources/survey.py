"""Reads a whole corpus once: checks that it is text, counts it, and takes its SHA-256."""

import codecs
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigpt.data.readers import read
from minigpt.data.readers.document import BadFile, Document
from minigpt.data.sources.corpus import Corpus
from minigpt.data.sources.download import SourceGone
from minigpt.faults import UserFault
from minigpt.files import sha256_of

MAX_NAMED = 20  # bad files


@dataclass
class Survey:
    """A corpus and counts over all its documents, of their UTF-8."""

    corpus: Corpus
    signature: str  # of the files when they were read
    documents: int = 0
    bytes: int = 0
    characters: int = 0  # bytes that begin a UTF-8 character
    sha256: str = ""  # of the file; of several: of lines "SHA-256  label", as sha256sum writes them
    alphabet: set[str] = field(default_factory=set)
    crlf: int = 0
    nul: int = 0
    marks: int = 0  # documents that begin with a byte-order mark
    empty: int = 0  # documents without any text, which are skipped
    first_empty: str = ""  # its label
    replaced: int = 0  # characters U+FFFD
    not_utf8: int = 0  # documents that are taken as bytes
    first_not_utf8: str = ""  # its label
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a corpus of tokens: what each sidecar says
    blank: bool = True  # nothing but white space
    val_fraction: float = 0.0  # with which `sides` was made
    sides: bytearray = field(default_factory=bytearray)  # rule content: 1 for validation, a document each
    val_bytes: int = 0  # rule content: of the documents for validation

    @property
    def rule(self) -> str:
        """How it is split: as its corpus says, or at its tail if whole documents are too few or too unequal."""
        share = self.val_bytes / max(1, self.bytes)
        even = 0 < self.val_bytes < self.bytes and self.val_fraction / 10 <= share <= 5 * self.val_fraction
        even |= self.corpus.options.chat  # a conversation is never cut
        return "tail" if self.corpus.rule == "content" and not even else self.corpus.rule

    def notes(self) -> list[str]:
        """Return sentences about what a user may not expect in the text."""
        options = self.corpus.options
        said = {
            f"the text is rewritten from {options.encoding} to UTF-8": options.encoding != "utf-8",
            f"{self.not_utf8:,} documents are not UTF-8 and taken as bytes, {self.first_not_utf8} first": (
                self.not_utf8 and not options.chat
            ),
            f"{self.replaced:,} characters U+FFFD; bytes that are no text became such": self.replaced,
            f"{self.crlf:,} lines end in CR LF; they are kept as they are": self.crlf,
            f"documents with a byte-order mark in front: {self.marks:,}; data.encoding=utf-8-sig drops it": self.marks,
            f"{self.nul:,} NUL bytes; they are kept as they are": self.nul,
            f"{self.empty:,} records without any text are passed over": self.empty and not options.chat,
            f"{self.empty:,} conversations without an answer are passed over, {self.first_empty} first": (
                self.empty and options.chat
            ),
            f"split by whole documents, validation has {self.val_bytes:,} of {self.bytes:,} bytes: the text is cut "
            "near its end instead; data.val_source=FILE chooses what to validate on": self.rule != self.corpus.rule,
        }
        return [sentence for sentence, holds in said.items() if holds]


def survey(
    corpus: Corpus,
    *,
    alphabet: bool = False,
    val_fraction: float = 0.1,
    progress: Callable[[int], None] = lambda n_bytes: None,
) -> Survey:
    """Read a whole corpus once.

    Args:
        corpus: of any size.
        alphabet: also collect the characters.
        val_fraction: of the documents that are for validation, where they are split by their content.
        progress: called with the number of bytes read since the last call.

    Raises:
        UserFault: files can't be read, which it names; or there is nothing but white space in the corpus.
    """
    found, lines, bad = Survey(corpus, signature(corpus), val_fraction=val_fraction), [], []
    for file in corpus.files:
        try:
            for document in read(file, corpus.options):
                _count(document, found, alphabet, progress)
        except BadFile as fault:
            bad.append(str(fault))
        lines.append(f"{sha256_of(file.path)}  {file.label}\n")
    if bad:
        more = [f"{len(bad) - MAX_NAMED:,} more files can't be read"] if len(bad) > MAX_NAMED else []
        raise UserFault(*bad[:MAX_NAMED], *more)
    listing = "".join(lines).encode("utf-8", "surrogateescape")
    found.sha256 = hashlib.sha256(listing).hexdigest() if len(lines) > 1 else lines[0][:64]
    if found.blank and corpus.options.chat:
        raise UserFault(f"no conversation of {corpus.files[0].path} has an answer to learn. Use others")
    if found.blank:
        where = ", ".join(str(file.path) for file in corpus.files[:3])
        raise UserFault(f"the text is nothing but white space ({found.bytes:,} bytes in {where}); wanted some text")
    return found


def count_characters(text: bytes) -> int:
    """Return how many characters begin in UTF-8: the bytes that are no continuation (0x80 to 0xBF)."""
    return len(text) if text.isascii() else int(np.count_nonzero(np.frombuffer(text, np.int8) >= -64))


def is_held_out(digest: bytes, val_fraction: float) -> bool:
    """Return whether a document with this SHA-256 is for validation; with a larger fraction it stays there."""
    return int.from_bytes(digest[:8]) < val_fraction * 2**64


def signature(corpus: Corpus) -> str:
    """Return a hash of the names, sizes and times of a corpus's files as they are now.

    Raises:
        SourceGone: one of them is gone.
    """
    try:
        status = [(file.label, file.path.stat()) for file in corpus.files]
    except OSError as error:
        raise SourceGone(f"{error.filename} is gone") from None
    listing = [(label, entry.st_size, entry.st_mtime_ns) for label, entry in status]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def _count(document: Document, found: Survey, alphabet: bool, progress: Callable[[int], None]) -> None:
    """Add a document."""
    decoder, last, before = codecs.getincrementaldecoder("utf-8")(), b"", found.bytes
    options, is_text = found.corpus.options, True
    decoded = alphabet or options.raw
    digest = hashlib.sha256() if found.corpus.rule == "content" else None
    for number, chunk in enumerate(document.chunks):
        found.marks += not number and chunk.startswith(codecs.BOM_UTF8)
        found.bytes += len(chunk)
        found.characters += count_characters(chunk)
        if b"\r" in chunk or last == b"\r":  # to look for one byte is ten times as fast as to count two
            found.crlf += chunk.count(b"\r\n") + (last == b"\r" and chunk.startswith(b"\n"))
        found.nul += chunk.count(0) if b"\0" in chunk else 0
        if digest:
            digest.update(chunk)
        found.replaced += chunk.count("\ufffd".encode()) if options.errors == "replace" else 0
        found.blank = found.blank and not chunk.strip()
        last = chunk[-1:]
        if decoded and is_text:
            try:
                characters = decoder.decode(chunk)
                found.alphabet.update(characters if alphabet else "")
            except UnicodeDecodeError:
                is_text = False
        progress(len(chunk))
    if not is_text or decoder.getstate()[0]:
        found.not_utf8 += 1
        found.first_not_utf8 = found.first_not_utf8 or document.label
    if digest:
        found.sides.append(is_held_out(digest.digest(), found.val_fraction))
        found.val_bytes += found.sides[-1] * (found.bytes - before)
    if found.bytes == before:
        found.empty += 1
        found.first_empty = found.first_empty or document.label
    else:
        found.documents += 1
