"""JSON lines: each line is a record, and a document: the text under one of its keys, or a conversation."""

import json
from collections.abc import Iterator
from typing import Any

from minigpt.data.chat.roles import BadRecord, conversation_of
from minigpt.data.readers.document import BadFile, Document, File, ReadOptions

HEAD_BYTES = 1 << 12  # read before a part of a file


def read_jsonl(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the text of each record under `data.key`, or its conversation as `marked` writes it.

    A record with null, or a conversation in which the assistant says nothing, is an empty document.
    """
    for number, (offset, line) in enumerate(records(file, b"\n", begin, end), 1):
        if not (line := line.strip()):
            continue
        place = f"line {number:,}" if begin == 0 else f"the line at byte {offset:,}"
        yield document_of(file, options, place, line)


def document_of(file: File, options: ReadOptions, place: str, line: bytes) -> Document:
    """Return the document in the JSON of a record; `place` is where it is in its file."""
    try:
        record = json.loads(line.decode(options.encoding, options.errors).lstrip("\ufeff"))
        content = conversation_of(record, options.errors) if options.chat else _text_of(record, options)
    except UnicodeError as error:
        remedy = "Name its encoding (data.encoding=cp1252), write JSON lines, not Parquet"
        raise BadFile(f"{file}, {place}: {error}. {remedy}, or use data.errors=cp1252|replace") from None
    except (ValueError, RecursionError) as error:
        remedy = f"Give one record a line, or name the file {'.json' if line[:1] == b'[' or options.chat else '.txt'}"
        raise BadFile(f"{file}, {place} is not JSON ({error}). {remedy}") from None
    except BadRecord as fault:
        raise BadFile(f"{file}, {place}: {fault}{file.or_without}") from None
    return Document(f"{file.label}, {place}", iter([content] if content else []))


def _text_of(record: Any, options: ReadOptions) -> bytes:
    if isinstance(record, dict) and isinstance(text := record.get(options.key, 0), str | None):
        return (text or "").encode("utf-8", options.errors)
    if isinstance(record, list):
        raise BadRecord("the line is an array of records. Give one record a line, or name the file .json")
    texts = [name for name in record if isinstance(record[name], str)] if isinstance(record, dict) else []
    keys = " or ".join(f"data.key={key}" for key in texts[:5] or ["KEY"]) + "; train on conversations with data=chat"
    raise BadRecord(f"the record {json.dumps(record)[:60]} has no text under {options.key!r}. Name another key: {keys}")


def records(file: File, separator: bytes, begin: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the text between separators: each record that begins in begin ... end - 1, with its position."""
    # Three newlines hold two blank lines, and the first counts: so start after a byte that no separator holds.
    head = next(file.chunks(max(0, begin - HEAD_BYTES), begin, HEAD_BYTES), b"")
    start, parts = max(0, begin - 1 - len(head) + len(head.rstrip(separator))), list[bytes]()
    for chunk in file.chunks(start):
        data = parts.pop() + chunk if parts else chunk  # the last piece may end in a part of a separator
        *whole, left = data.split(separator)
        for record in whole:
            content = b"".join([*parts, record])
            if start >= begin:
                yield start, content
            start, parts = start + len(content) + len(separator), []
            if end is not None and start >= end:
                return
        keep = len(separator) - 1
        parts += [left[: len(left) - keep], left[len(left) - keep :]] if len(left) > keep else [left]
    if start >= begin:
        yield start, b"".join(parts)
