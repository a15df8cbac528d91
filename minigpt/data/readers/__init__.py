"""The readers, one file a format. A new format is a function from a file to documents and its line here."""

from collections.abc import Callable, Iterator

from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.readers.jsonl import read_jsonl
from minigpt.data.readers.parquet import read_parquet
from minigpt.data.readers.plain import read_plain
from minigpt.data.readers.table import is_table, read_table

Reader = Callable[..., Iterator[Document]]  # of (file, options, begin, end): of a part of a file

# By the end of the file's name, without .gz and the like. Others are plain text, and tables without the column, too.
READERS: dict[str, Reader] = {".jsonl": read_jsonl, ".ndjson": read_jsonl, ".parquet": read_parquet}
READERS |= dict.fromkeys((".csv", ".tsv", ".json"), read_table)
NAMES = {read_jsonl: "JSON lines", read_parquet: "Parquet", read_table: "table"}


def read(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Return the documents of a file, or of a part of it.

    Raises:
        BadFile: it is not what its name says, or not text.
    """
    return reader_of(file, options)(file, options, begin, end)


def reader_of(file: File, options: ReadOptions) -> Reader:
    """Return the function that reads a file."""
    reader = READERS.get(file.suffix, read_plain)
    if reader is read_table and is_table(file, options):
        return reader
    return read_jsonl if options.chat else read_plain if reader is read_table else reader


def holds_records(file: File, options: ReadOptions) -> bool:
    """Return whether a file can hold several documents."""
    return reader_of(file, options) is not read_plain or options.separator is not None


def can_be_cut(file: File, options: ReadOptions) -> bool:
    """Return whether parts of a file can be read by several processes."""
    is_kept = options.encoding == "utf-8" and (options.raw or options.errors == "strict")
    return not file.packing and reader_of(file, options) is not read_table and (holds_records(file, options) or is_kept)
