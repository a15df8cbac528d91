"""JSON lines: each line is a record, and the text under one of its keys is a document."""

import json
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions


def read_jsonl(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the text of each record under `data.key`. Blank lines are skipped; a record with null has no text."""
    for place, line in lines_of(file, options.encoding, begin, end):
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
            raise BadFile(
                f"{file}, {place}: the record {_contents(record, options.key)}; wanted a text under {options.key!r}. "
                f"{_remedy(record, options.key)}, or leave it out: {file.remedy}"
            ) from None
        yield Document(f"{file.label}, {place}", iter([content] if content else []))


def _contents(record: object, key: str) -> str:
    if not isinstance(record, dict):
        return "is not an object"
    if key in record:
        return f"has {key!r}: {json.dumps(record[key])[:40]}"
    return f"has {', '.join(map(repr, list(record)[:8]))}"


def _remedy(record: object, key: str) -> str:
    """Name the key that holds a text, if one alone does."""
    texts = [name for name, value in record.items() if isinstance(value, str)] if isinstance(record, dict) else []
    return f"Name another key: data.key={texts[0] if len(texts) == 1 and texts[0] != key else 'KEY'}"


def lines_of(file: File, encoding: str, begin: int, end: int | None) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file that are not blank, without white space around them, and each line's place."""
    if not "\n\n".encode(encoding).endswith(b"\n\n"):  # utf-16
        remedy = f"Convert it (iconv -f {encoding} -t utf-8) and leave out data.encoding"
        raise BadFile(f"{file}: lines of JSON can't be told apart in data.encoding={encoding}. {remedy}")
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
