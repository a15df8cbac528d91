"""JSON lines of a run: metrics.jsonl, samples.jsonl, events.jsonl. One row a line; a torn last line is left out."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from minigpt.files import write_file

TIMINGS = ("seconds", "tokens_per_second", "mfu")  # the keys that differ between equal runs


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file; lines that are no JSON object, or torn, are left out."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def cut_rows_after(path: Path, step: int) -> int:
    """Remove rows of steps after `step`, which a run that continues from `step` will write again, and damaged lines.

    Returns:
        How many rows were removed.
    """
    rows = [row for row in read_rows(path) if isinstance(row.get("step"), int | float)]
    kept = [row for row in rows if row["step"] <= step]
    content = b"".join(_line(row) for row in kept)
    if path.exists() and path.read_bytes() != content:
        write_file(path, content)
    return len(rows) - len(kept)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row in a single write, so that a kill leaves it whole, absent or torn at the end.

    Raises:
        OSError: it can't be written; nothing of it is left in the file.
    """
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        content = (b"" if file.read(1) in (b"", b"\n") else b"\n") + _line(row)  # a power cut leaves a torn line
        try:
            if file.write(content) != len(content):
                raise OSError(f"{path}: the disk is full")
        except OSError:
            file.truncate(size)
            raise


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
