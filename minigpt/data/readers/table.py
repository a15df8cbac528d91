"""Tables: each row of a CSV file, and each element of a JSON array, is a record, like a line of JSON lines."""

import csv
import json
from collections.abc import Iterator
from typing import Any

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.jsonl import document_of, records

HEAD_BYTES = 1 << 14  # in which the names of the columns are
csv.field_size_limit(1 << 30)  # characters of a cell


def read_table(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the text of each row under `data.key`, or its conversation. The file is always read as a whole."""
    for number, row in enumerate(_rows(file, options), 1):
        yield document_of(file, options, f"row {number:,}", json.dumps(row).encode(options.encoding))


def is_table(file: File, options: ReadOptions) -> bool:
    """Return whether a file is a table with a column `data.key`; without one it is plain text.

    If another key than the default was typed, every CSV file is a table, so that a missing column is refused.
    """
    head = next(file.chunks(size=HEAD_BYTES), b"").decode(options.encoding, "replace").lstrip("\ufeff \r\n\t")
    if file.suffix == ".json":
        return head.startswith("[") and (options.chat or f'"{options.key}"' in head)
    names = _cells(head.partition("\n")[0])
    return not options.chat and (options.key in names or options.key != ReadOptions.key)


def _rows(file: File, options: ReadOptions) -> Iterator[Any]:
    try:
        if file.suffix == ".json":
            text = b"".join(file.chunks()).decode(options.encoding, options.errors)
            yield from json.loads(text.lstrip("\ufeff"))
            return
        whole = records(file, b"\n", 0, None)
        lines = (line.decode(options.encoding, options.errors) + "\n" for _, line in whole)
        header = next(lines).lstrip("\ufeff")
        yield from csv.DictReader(lines, _cells(header), delimiter=_delimiter(header))
    except (ValueError, csv.Error, RecursionError) as error:
        remedy = "Repair it, or save it as UTF-8; to read it as plain text, name it .txt"
        raise BadFile(f"{file} can't be read as {file.suffix[1:].upper()} ({error}). {remedy}") from None


def _cells(line: str) -> list[str]:
    return next(csv.reader([line], delimiter=_delimiter(line)), [])


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)
