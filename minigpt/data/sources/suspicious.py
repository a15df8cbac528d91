"""What may be wrong with a text that can be read: `data.check=true` lists it. One pass, in bounded memory."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from minigpt.data.readers import read
from minigpt.data.readers.document import BadFile, Document
from minigpt.data.sources.corpus import Corpus

# UTF-8 that was taken for Latin-1 or Windows-1252 and written as UTF-8 again: é as Ã©, ’ as â€™.
_MOJIBAKE = re.compile(rb"\xc3[\x82\x83]\xc2[\x80-\xbf]|\xc3\xa2\xe2\x82\xac")
_REPLACED = "\ufffd".encode()
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
MIN_LINE_BYTES = 30  # shorter ones repeat in any text
MIN_REPEATS = 10
LONG_LINE_BYTES = 100_000
MAX_LINES = 1 << 18  # different lines that are counted; the rarer ones are forgotten
MAX_HASHES = 1 << 22  # of documents
SHOWN_BYTES = 60


@dataclass
class _Found:
    """Counts over a text, each with the first document that it was found in."""

    size: int = 0  # bytes
    documents: int = 0
    largest: tuple[int, str] = (0, "")
    where: dict[str, list[int | str]] = field(default_factory=dict)  # what -> how often, first label
    lines: dict[bytes, int] = field(default_factory=dict)
    forgotten: int = 0  # lines that had come no more often than this were dropped from `lines`
    hashes: set[bytes] = field(default_factory=set)

    def add(self, what: str, count: int, label: str) -> None:
        if count:
            entry = self.where.setdefault(what, [0, label])
            entry[0] = int(entry[0]) + count

    def count_line(self, line: bytes) -> None:
        self.lines[line] = self.lines.get(line, 0) + 1
        while len(self.lines) > MAX_LINES:
            self.forgotten += 1
            self.lines = {line: count for line, count in self.lines.items() if count > self.forgotten}


def suspicious(corpus: Corpus, progress: Callable[[int], None] = lambda n_bytes: None) -> list[str]:
    """Return a sentence for each thing in a text that may be a mistake. Files that can't be read are skipped.

    Args:
        corpus: of text.
        progress: called with the number of bytes read since the last call.
    """
    found = _Found()
    for file in corpus.files:
        try:
            for document in read(file, corpus.options):
                _look(document, found, progress)
        except BadFile:
            continue  # the survey names them all
    said = [f"{count:,} {what}; first in {label}" for what, (count, label) in found.where.items()]
    size, label = found.largest
    if found.documents > 1 and size > found.size / 2:
        said.append(f"one document is larger than all others together: {label}, {size:,} of {found.size:,} bytes")
    return [*said, *_repeated(found)] or ["nothing suspicious was found"]


def _look(document: Document, found: _Found, progress: Callable[[int], None]) -> None:
    digest, size, is_blank = hashlib.sha256(), 0, True
    for chunk in document.chunks:
        size += len(chunk)
        digest.update(chunk)
        is_blank = is_blank and not chunk.strip()
        found.add(
            "pieces of text that were decoded wrongly once, such as Ã© for é",
            len(_MOJIBAKE.findall(chunk)),
            document.label,
        )
        found.add("characters U+FFFD, each once a byte that was no text", chunk.count(_REPLACED), document.label)
        found.add("control characters", len(_CONTROL.findall(chunk)), document.label)
        for line in chunk.split(b"\n"):
            found.add(f"lines of more than {LONG_LINE_BYTES:,} bytes", len(line) > LONG_LINE_BYTES, document.label)
            if len(line := line.strip()) >= MIN_LINE_BYTES:
                found.count_line(line[:4096])
        progress(len(chunk))
    found.size += size
    found.documents += 1
    found.largest = max(found.largest, (size, document.label))
    found.add("documents with nothing but white space" if size else "empty documents", is_blank, document.label)
    if not is_blank and len(found.hashes) < MAX_HASHES:
        found.add("documents that are the same as an earlier one", digest.digest()[:12] in found.hashes, document.label)
        found.hashes.add(digest.digest()[:12])


def _repeated(found: _Found) -> Iterator[str]:
    """Yield the most frequent lines, if repeated lines make up more than a hundredth of the text."""
    often = {line: count for line, count in found.lines.items() if count >= MIN_REPEATS}
    size = sum(len(line) * count for line, count in often.items())
    if size <= found.size / 100:
        return
    what = f"{len(often):,} lines of {MIN_LINE_BYTES} bytes or more stand {MIN_REPEATS} times or more"
    yield f"{what}: {size / found.size:.0%} of the text. Those that take most of it:"
    for line in sorted(often, key=lambda line: len(line) * often[line], reverse=True)[:3]:
        text = line[:SHOWN_BYTES].decode("utf-8", "replace")
        yield f"    {often[line]:,} times: {text!r}{' ...' if len(line) > SHOWN_BYTES else ''}"
