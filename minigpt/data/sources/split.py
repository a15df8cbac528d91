"""The split: which parts of a corpus are for training and which for validation.

The rule is fixed, so a text is always split the same way (`Survey.rule`).

source: with a text for validation (data.val_source), all of that text is for validation, data.source for training.
label: stdlib; whole documents, of which one is for validation if the hash of its label falls into the fraction.
content: folders, globs and lists; whole documents, by the hash of their content. A document stays on its side when
    others are added, and exact duplicates are on one side.
tail: a single file; the first int(n * (1 - val_fraction)) of the n characters are for training, the rest for
    validation (bytes instead of characters where the bytes are no UTF-8). Also for folders that versions up to 0.1.0
    have split, and for those whose documents are too few or too unequal.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter

import numpy as np

from minigpt.data.readers.document import Document
from minigpt.data.sources.corpus import Corpus
from minigpt.data.sources.survey import Survey, count_characters, is_held_out
from minigpt.faults import UserFault

_Piece = tuple[int, str, bytes]  # number of the document, train | val, bytes of its text


def split(found: Survey, val_fraction: float) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Return the text of a corpus in order: for each document, or part of one, train | val and its chunks.

    The chunks must be read before the next part is asked for. Documents without any text are skipped.

    Raises:
        UserFault: one of the splits would be empty; or as reading does.
    """
    documents = found.corpus.documents()
    if found.rule == "source":
        pieces = _by_source(found.corpus)
    elif found.rule == "label":
        pieces = _by_label(documents, val_fraction)
    elif found.rule == "content":
        pieces = _whole(zip(found.sides, documents, strict=False))
    else:
        # UTF-8 has at least one character per four bytes; a text with fewer is no UTF-8, and its bytes are counted.
        is_text = 4 * found.characters >= found.bytes
        total = found.characters if is_text else found.bytes
        border = int(total * (1 - val_fraction))
        if not 0 < border < total:
            raise small_split("val" if border else "train", "no text", val_fraction)
        pieces = _at(border, documents, is_text)
    for (_, name), part in itertools.groupby(pieces, itemgetter(0, 1)):
        yield name, map(itemgetter(2), part)


def describe_split(rule: str, val_fraction: float, val_source: str | None = None) -> str:
    """Return the rule in one sentence."""
    if rule == "source":
        return f"all of {val_source} for validation"
    if rule == "label":
        return f"whole files by the hash of their path, about {val_fraction:g} of them for validation"
    if rule == "content":
        return f"whole documents by the hash of their content, about {val_fraction:g} of them for validation"
    return f"the last {val_fraction:g} of the characters for validation"


def small_split(name: str, got: str, val_fraction: float) -> UserFault:
    """Return the fault for a split that is too small to train on or to validate with."""
    other = f" or a {'smaller' if name == 'train' else 'larger'} data.val_fraction (now {val_fraction:g})"
    remedy = f"Use more text{other if val_fraction else ''}"
    return UserFault(f"the {name} split has {got}, and predicting one token takes at least 2. {remedy}")


def _by_source(corpus: Corpus) -> Iterator[_Piece]:
    border = len(corpus.files) - corpus.val_files
    for name, files in (("train", corpus.files[:border]), ("val", corpus.files[border:])):
        for number, document in enumerate(replace(corpus, files=files).documents()):
            yield from ((number, name, chunk) for chunk in document.chunks)


def _by_label(documents: Iterator[Document], val_fraction: float) -> Iterator[_Piece]:
    def side(document: Document) -> bool:
        return is_held_out(hashlib.sha256(f"minigpt validation:{document.label}".encode()).digest(), val_fraction)

    return _whole((side(document), document) for document in documents)


def _whole(documents: Iterable[tuple[int, Document]]) -> Iterator[_Piece]:
    """Yield the pieces of whole documents, each of which comes with whether it is for validation."""
    for number, (is_val, document) in enumerate(documents):
        yield from ((number, "val" if is_val else "train", chunk) for chunk in document.chunks)


def _at(border: int, documents: Iterator[Document], is_text: bool) -> Iterator[_Piece]:
    """Split where character (or byte) number `border` begins."""
    for number, document in enumerate(documents):
        if border == 0:
            border = -1  # reached
        for chunk in document.chunks:
            cut = _offset(chunk, border, is_text) if border >= 0 else 0
            if cut:
                yield number, "train", chunk[:cut]
            if cut < len(chunk):
                border = -1
                yield number, "val", chunk[cut:]
            else:
                border -= count_characters(chunk) if is_text else len(chunk)


def _offset(chunk: bytes, place: int, is_text: bool) -> int:
    """Return where character (or byte) number `place` begins; the chunk's length if it lies after the chunk."""
    if not is_text or place >= len(chunk):
        return min(place, len(chunk))
    starts = np.flatnonzero((np.frombuffer(chunk, dtype=np.uint8) & 0xC0) != 0x80)
    return int(starts[place]) if place < len(starts) else len(chunk)
