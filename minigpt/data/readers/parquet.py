"""Parquet tables: each row is a record, and one of its columns holds a document."""

import re
from collections.abc import Iterator
from typing import Any

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.packed import bomb_bytes

BATCH_ROWS = 64  # a whole row group at once would take hundreds of megabytes of memory


def read_parquet(file: File, options: ReadOptions) -> Iterator[Document]:
    """Yield the text of each row in column `data.key`; rows without one are empty documents."""
    import pyarrow
    from pyarrow import parquet

    row, left = 0, bomb_bytes(file.path)
    try:
        with parquet.ParquetFile(file.path, page_checksum_verification=True) as table:
            _check_column(file, options.key, table.schema_arrow)
            bomb = BadFile(f"{file.path} is a decompression bomb; leave it out: {file.remedy}")
            if _unpacked_bytes(table.metadata, options.key) > left:  # before a page of it is unpacked
                raise bomb
            for batch in table.iter_batches(BATCH_ROWS, columns=[options.key], use_threads=False):
                column = batch.column(0)
                indexed = hasattr(column, "dictionary")  # categories: a row holds the number of its text
                words = (column.dictionary if indexed else column).cast(pyarrow.large_binary())
                for place in column.indices.to_pylist() if indexed else range(len(words)):
                    content = None if place is None else words[place].as_py()
                    row, left, text = row + 1, left - len(content or b""), content or b""
                    if left < 0:
                        raise bomb
                    if not options.raw:
                        text = text.decode("utf-8", options.errors).encode()
                    yield Document(f"{file.label}:{row}", iter([text] if text else []))
    except UnicodeDecodeError as error:
        raise BadFile(f"{file.path}, row {row:,}: {error}. To read bad bytes as U+FFFD: data.errors=replace") from None
    except (pyarrow.ArrowException, OSError, MemoryError, OverflowError) as error:
        raise BadFile(
            f"{file.path} is cut, damaged or no Parquet file ({' '.join(str(error).split())[:200]}); get it again, or "
            f"leave it out: {file.remedy}"
        ) from None


def _unpacked_bytes(metadata: Any, key: str) -> int:
    """Return the bytes of a column when it is unpacked, as the file states them."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == key)


def _check_column(file: File, key: str, schema: Any) -> None:
    """Refuse a file without a text column `key`: for a column that is missing, pyarrow gives none and no error."""
    kinds = {field.name: str(field.type) for field in schema}
    if re.sub(r"dictionary<values=(\w+),.*", r"\1", kinds.get(key, "")) not in (
        "string",
        "large_string",
        "binary",
        "large_binary",
    ):
        got = f"its column {key!r} holds {kinds[key]}" if key in kinds else f"it has no column {key!r}"
        there = ", ".join(f"{name} ({kind})" for name, kind in list(kinds.items())[:20])
        raise BadFile(f"{file.path}: {got}, wanted text; it has {there}. Name another column: data.key=COLUMN")
