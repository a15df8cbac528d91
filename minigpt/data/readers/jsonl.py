"""JSON lines: each line is a record, and the text under one of its keys is a document."""

import json
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions

MAX_LINE_BYTES = 1 << 26  # a longer one is no record, and would fill the memory


def read_jsonl(file: File, options: ReadOptions) -> Iterator[Document]:
    """Yield the text of each record under `data.key`. Blank lines are skipped."""
    for number, line in enumerate(lines_of(file, options.encoding), 1):
        place = f"{file.path}, line {number:,}"
        try:
            record = json.loads(line.decode(options.encoding, options.errors).lstrip("\ufeff") or "null")
            text = "" if record is None else record[options.key]
            content = text.encode("utf-8", options.errors)
        except UnicodeError as error:
            raise BadFile(f"{place}: {error}. Write it as UTF-8, or use data.errors=replace") from None
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{place} is not JSON ({error}). Give one record a line, or name the file .txt") from None
        except (LookupError, TypeError, AttributeError):
            has = f"has {', '.join(map(repr, list(record)[:8]))}" if isinstance(record, dict) else "is not an object"
            if isinstance(record, dict) and options.key in record:
                has = f"has {options.key!r}: {json.dumps(record[options.key])[:40]}"
            raise BadFile(
                f"{place}: the record {has}; wanted a text under {options.key!r}. Name another key: data.key=KEY, "
                f"or leave it out: {file.remedy}"
            ) from None
        if line:
            yield Document(f"{file.label}:{number}", iter([content] if content else []))


def lines_of(file: File, encoding: str) -> Iterator[bytes]:
    """Yield the lines of a file without white space around them.

    Raises:
        BadFile: one is longer than any record, or the encoding has other line ends than ASCII's.
    """
    if not "\n\n".encode(encoding).endswith(b"\n\n"):  # utf-16
        remedy = f"Convert it (iconv -f {encoding} -t utf-8) and leave out data.encoding"
        raise BadFile(f"{file.path}: lines of JSON can't be told apart in data.encoding={encoding}. {remedy}")
    parts, number = [b""], 1  # of the line that has not ended yet
    for chunk in file.chunks():
        lines = chunk.split(b"\n")
        for line in lines[:-1]:
            yield b"".join([*parts, line]).strip()
            parts, number = [], number + 1
        parts.append(lines[-1])
        if sum(map(len, parts)) > MAX_LINE_BYTES:
            raise BadFile(
                f"{file.path}, line {number:,} is longer than {MAX_LINE_BYTES:,} bytes; wanted one record a line. To "
                f"train on the file as it is, name it .txt; to leave it out: {file.remedy}"
            )
    yield b"".join(parts).strip()
