"""Parquet tables: each row is a record, and one of its columns holds a document."""

import importlib
import re
from collections.abc import Iterator
from typing import Any

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions

BATCH_ROWS = 64  # a whole row group at once would take hundreds of megabytes of memory
TEXT_TYPES = ("string", "large_string", "binary", "large_binary")


def read_parquet(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the text of each row in column `data.key`; rows without one are empty documents.

    For a part of the file, row groups are selected by their place among all row groups.
    """
    pyarrow, parquet, row = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet"), 0
    try:
        with parquet.ParquetFile(file.path, page_checksum_verification=True) as table:
            _check_column(file, options.key, table.schema_arrow)
            places = [number * file.size // table.num_row_groups for number in range(table.num_row_groups)]
            groups = [number for number, place in enumerate(places) if begin <= place and (end is None or place < end)]
            row = sum(table.metadata.row_group(number).num_rows for number in range(groups[0] if groups else 0))
            for batch in table.iter_batches(BATCH_ROWS, groups, columns=[options.key], use_threads=False):
                column = batch.column(0)
                plain = column.dictionary_decode() if hasattr(column, "dictionary") else column
                for value in plain.cast(pyarrow.large_binary()):
                    row += 1
                    text = value.as_py() or b""
                    if not options.raw:
                        text = text.decode("utf-8", options.errors).encode()
                    yield Document(f"{file.label}, row {row:,}", iter([text] if text else []))
    except UnicodeDecodeError as error:
        raise BadFile(f"{file}, row {row:,}: {error}. To read bad bytes: data.errors=cp1252|replace") from None
    except (pyarrow.ArrowException, OSError, MemoryError, OverflowError) as error:
        wrong = f"{file} is cut, damaged or no Parquet file ({' '.join(str(error).split())[:200]})"
        raise BadFile(f"{wrong}; get it again{file.or_without}") from None


def _check_column(file: File, key: str, schema: Any) -> None:
    """Refuse a file without a text column `key`: for a column that is missing, pyarrow gives none and no error."""
    kinds = {field.name: str(field.type) for field in schema}
    if re.sub(r"dictionary<values=(\w+),.*", r"\1", kinds.get(key, "")) not in TEXT_TYPES:
        got = f"its column {key!r} holds {kinds[key]}" if key in kinds else f"it has no column {key!r}"
        columns = ", ".join(f"{name} ({kind})" for name, kind in list(kinds.items())[:20])
        raise BadFile(f"{file}: {got}, wanted text; it has {columns}. Name another column: data.key=COLUMN")
