"""The split: which documents are for training and which for validation.

The rule is fixed, so a text is always split the same way.

source: all of data.val_source is for validation, data.source for training.
names: the names of the files show a split that somebody made (train-00000-of-00004.parquet, validation-...).
label: stdlib; whole documents, of which one is for validation if the hash of its label falls into the fraction.
content: FEW_DOCUMENTS or more; whole documents, by the hash of their first MiB. A document stays on its side when
    others are added, and duplicates are on one side.
tail: a single plain text, and documents so unequal that far too much or too little would be held out; the first
    int(n * (1 - val_fraction)) of the n characters are for training, the rest for validation.
tails: fewer documents; each is divided as a single text is, since all may be of different kinds.
"""

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from minigpt.data.readers.document import Document
from minigpt.data.readers.plain import DOCUMENT_HEAD_BYTES

FEW_DOCUMENTS = 50
HASHES = 1 << 64  # a document whose hash is below the fraction of these is for validation


def hash_of(document: Document, rule: str, *, is_val: bool) -> tuple[int, Iterator[bytes]]:
    """Return the number below HASHES by which a document is split, and its chunks, of which none is lost."""
    if rule in ("source", "names", "tail", "tails"):
        return 0 if is_val else HASHES - 1, document.chunks
    if rule == "label":
        return _number(f"minigpt validation:{document.label}".encode()), document.chunks
    if document.head is not None:
        return _number(document.head), document.chunks
    held, size = list[bytes](), 0
    for chunk in document.chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= DOCUMENT_HEAD_BYTES:
            break
    return _number(b"".join(held)[:DOCUMENT_HEAD_BYTES]), itertools.chain(held, document.chunks)


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8])


def offset(text: bytes, character: int) -> int:
    """Return where a character of a text begins; the text's length if it lies after the text."""
    if text.isascii() or character <= 0 or character >= len(text):
        return max(0, min(character, len(text)))
    starts = np.flatnonzero((np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80)
    return int(starts[character]) if character < len(starts) else len(text)


def count_characters(text: bytes) -> int:
    """Return how many characters begin in UTF-8: the bytes that are no continuation (0x80 to 0xBF)."""
    return len(text) if text.isascii() else int(np.count_nonzero(np.frombuffer(text, np.int8) >= -64))


def describe_split(rule: str, val_fraction: float, val_source: str | None = None) -> str:
    """Return the rule in one sentence."""
    return {
        "source": f"all of {val_source} for validation",
        "names": "the files that are for validation by their names; data.val_source= names others",
        "tokens": "the files with val in their names for validation",
        "label": f"whole files by the hash of their path, about {val_fraction:g} of them for validation",
        "content": f"whole documents by the hash of their content, about {val_fraction:g} of them for validation",
        "tail": f"the last {val_fraction:g} of the characters for validation",
        "tails": f"the last {val_fraction:g} of the characters of each document for validation",
    }[rule]
