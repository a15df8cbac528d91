"""JSON lines: each line is a record, and one of its texts a document."""

import json
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions


def read_jsonl(file: File, options: ReadOptions) -> Iterator[Document]:
    """The text of each record under `data.key`. Blank lines and empty texts are passed over."""
    for number, line in enumerate(_lines(file), 1):
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
            wanted = f"a text under {options.key!r}. Name another key: data.key=KEY"
            raise BadFile(f"{place}: the record {has}; wanted {wanted}") from None
        if content:
            yield Document(f"{file.label}:{number}", iter([content]))


def _lines(file: File) -> Iterator[bytes]:
    rest = b""
    for chunk in file.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from map(bytes.strip, lines)
    yield rest.strip()
