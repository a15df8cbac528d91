"""Tables: each row of a CSV file, and each object of a JSON file that holds several, is a record, as in JSON lines."""

import codecs
import csv
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.jsonl import document_of
from minigpt.data.readers.plain import not_valid

HEAD_BYTES = 1 << 20  # in which the names of the columns, or the first record, are
csv.field_size_limit(1 << 30)  # characters of a cell


def read_table(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the text of each row under `data.key`, or its conversation. The file is always read as a whole."""
    for number, row in enumerate(_rows(file, options), 1):
        yield document_of(file, options, f"row {number:,}", json.dumps(row).encode(options.encoding))


def is_table(file: File, options: ReadOptions) -> bool:
    """Return whether a file is a table with a column `data.key`; without one it is plain text.

    If another key than the default was typed, all tables are, so that a missing column is refused.
    """
    is_typed = options.key != ReadOptions.key
    if file.suffix != ".json":
        return not options.chat and (is_typed or options.key in columns_of(file, options))
    head = _head(file, options)
    records = head.removeprefix("[").lstrip()
    try:
        first, end = json.JSONDecoder().raw_decode(records)
    except (ValueError, RecursionError):
        return False
    is_several = head.startswith("[") or records[end:].lstrip().startswith("{")
    if not (is_several and isinstance(first, dict)):
        return False
    return options.chat or is_typed or isinstance(first.get(options.key, 0), str | None)


def columns_of(file: File, options: ReadOptions) -> list[str]:
    """Return the names in the first line of a table."""
    line = _head(file, options).partition("\n")[0]
    return _cells(line, _delimiter(file, line))


def _head(file: File, options: ReadOptions) -> str:
    chunk = next(file.chunks(size=HEAD_BYTES), b"")
    return _decoder(options.encoding, "replace").decode(chunk).lstrip("\ufeff \n")


def _rows(file: File, options: ReadOptions) -> Iterator[Any]:
    decoder = _decoder(options.encoding, options.errors)
    pieces = (decoder.decode(chunk, final=not chunk) for chunk in itertools.chain(file.chunks(), [b""]))
    try:
        if file.suffix == ".json":
            text = "".join(pieces).lstrip("\ufeff \n")
            objects = filter(str.strip, text.split("\n"))  # one a line
            yield from json.loads(text) if text.startswith("[") else map(json.loads, objects)
            return
        lines = _lines(pieces)
        header = next((line for line in lines if line.strip("\ufeff\n")), "").lstrip("\ufeff")
        delimiter = _delimiter(file, header)
        for row in csv.DictReader(lines, _cells(header, delimiter), delimiter=delimiter):
            if any(row.get(None) or ()):
                raise ValueError(f"a row has more cells than the header: {str(row)[:80]}")
            yield row
    except UnicodeDecodeError as error:
        raise not_valid(file, options, error) from None
    except (ValueError, csv.Error, RecursionError) as error:
        remedy = "Repair it; to read it as plain text, name it .txt"
        raise BadFile(f"{file} can't be read as {file.suffix[1:].upper()} ({error}). {remedy}") from None


def _decoder(encoding: str, errors: str) -> io.IncrementalNewlineDecoder:
    return io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(errors), translate=True)


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in whole)
    yield rest


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def _delimiter(file: File, line: str) -> str:
    return "\t" if file.suffix == ".tsv" else max(",;\t", key=line.count)
