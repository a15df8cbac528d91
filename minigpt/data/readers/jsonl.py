"""JSON lines: each line is a record, and the text under one of its keys is a document."""

import json
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions


def read_jsonl(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the text of each record under `data.key`. Blank lines are skipped; a record with null has no text."""
    for place, line in lines_of(file, begin, end):
        try:
            record = json.loads(line.decode(options.encoding, options.errors).lstrip("\ufeff"))
            text = record[options.key]
            content = b"" if text is None else text.encode("utf-8", options.errors)
        except UnicodeError as error:
            raise BadFile(f"{file}, {place}: {error}. Write it as UTF-8, or use data.errors=replace") from None
        except (ValueError, RecursionError) as error:
            raise BadFile(
                f"{file}, {place} is not JSON ({error}). Give one record a line, or name the file .txt"
            ) from None
        except (LookupError, TypeError, AttributeError):
            texts = [name for name in record if isinstance(record[name], str)] if isinstance(record, dict) else []
            key = texts[0] if len(texts) == 1 else "KEY"
            raise BadFile(
                f"{file}, {place}: the record {line[:60].decode(options.encoding, 'replace')} has no text under "
                f"{options.key!r}. Name another key: data.key={key}, or leave it out: {file.remedy}"
            ) from None
        yield Document(f"{file.label}, {place}", iter([content] if content else []))


def lines_of(file: File, begin: int, end: int | None) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file that are not blank, without white space around them, and each line's place."""
    for number, (offset, line) in enumerate(records(file, b"\n", begin, end), 1):
        if line := line.strip():
            yield f"line {number:,}" if begin == 0 else f"the line at byte {offset:,}", line


def records(file: File, separator: bytes, begin: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield what stands between separators: each record that begins in begin ... end - 1, with the place where."""
    start = max(0, begin - len(separator))  # a record begins at `begin` if a separator ends there
    skips, parts = begin > 0, list[bytes]()
    for chunk in file.chunks(start):
        data = parts.pop() + chunk if parts else chunk  # the last piece may end in a part of a separator
        *whole, left = data.split(separator)
        for record in whole:
            content = b"".join([*parts, record])
            if not skips:
                yield start, content
            start, skips, parts = start + len(content) + len(separator), False, []
            if end is not None and start >= end:
                return
        keep = len(separator) - 1
        parts += [left[: len(left) - keep], left[len(left) - keep :]] if len(left) > keep else [left]
    if not skips:
        yield start, b"".join(parts)
