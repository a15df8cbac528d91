"""Units of work: parts of files of about the same size, whatever the number of workers. A unit becomes a shard."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from minigpt.data.readers import can_be_cut, holds_records, read
from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.sources.corpus import Corpus

UNIT_BYTES = 1 << 23  # of files; larger if there were more than MAX_UNITS
MAX_UNITS = 256
WINDOW_BYTES = 1 << 20  # read to find a place where a text may be cut

Runs = Callable[[Iterable[bytes]], Iterator[bytes]]  # of a tokenizer: pieces of a text that can be encoded alone


@dataclass(frozen=True)
class Part:
    """Bytes begin ... end - 1 of a file; without an end, all that follow."""

    file: File
    begin: int = 0
    end: int | None = None

    def documents(self, options: ReadOptions) -> Iterator[Document]:
        """Yield the documents that begin in it; of a text without records, that part of it."""
        return read(self.file, options, self.begin, self.end)


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


def units_of(corpus: Corpus, runs: Runs) -> list[Unit]:
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
            end = _cut(file, begin + room, corpus.options, runs) if file.size - begin > room else None
            units[-1].append(Part(file, begin, end))
            room -= (file.size if end is None else end) - begin
            begin = end
    return [Unit(number, tuple(parts), corpus.options) for number, parts in enumerate(units)]


def _cut(file: File, place: int, options: ReadOptions, runs: Runs) -> int | None:
    """Return where a file can be cut near a place, or None. Records are found by those who read them."""
    if not can_be_cut(file, options):
        return None
    if holds_records(file, options):
        return place
    window = next(file.chunks(place, size=WINDOW_BYTES), b"")
    run = next(iter(runs([window])), b"")
    return place + len(run) if len(run) < len(window) else None
