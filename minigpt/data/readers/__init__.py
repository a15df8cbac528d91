"""The readers, one file a format. A new format is a function from a file to documents and its line here."""

from collections.abc import Callable, Iterator

from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.readers.jsonl import read_jsonl
from minigpt.data.readers.parquet import read_parquet
from minigpt.data.readers.plain import read_plain

Reader = Callable[..., Iterator[Document]]  # of (file, options, begin, end): of a part of a file

# By the end of the file's name, .gz and .zst left out. All others are plain text.
READERS: dict[str, Reader] = {".jsonl": read_jsonl, ".ndjson": read_jsonl, ".parquet": read_parquet}
NAMES = {".jsonl": "JSON lines", ".ndjson": "JSON lines", ".parquet": "Parquet"}


def read(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Return the documents of a file, or of a part of it.

    Raises:
        BadFile: it is not what its name says, or not text.
    """
    reader = read_jsonl if options.chat else READERS.get(file.suffix, read_plain)
    return reader(file, options, begin, end)


def holds_records(file: File, options: ReadOptions) -> bool:
    """Return whether a file can hold several documents."""
    return options.chat or file.suffix in READERS or options.separator is not None


def can_be_cut(file: File, options: ReadOptions) -> bool:
    """Return whether parts of a file can be read by several processes."""
    is_kept = options.encoding == "utf-8" and (options.raw or options.errors == "strict")
    return not file.packing and (holds_records(file, options) or is_kept)
