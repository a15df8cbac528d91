"""JSON lines of a run: metrics.jsonl, samples.jsonl, events.jsonl. One row a line; a torn last line is left out."""

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import StorageFailure

TIMINGS = ("seconds", "tokens_per_second", "mfu")  # the keys that differ between equal runs


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a JSON-lines file; a torn last line is left out."""
    rows = []
    if path.is_file():
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows


def cut_rows_after(path: Path, step: int) -> int:
    """Remove rows of steps after `step`, which a run that continues from there will write again.

    Returns:
        How many went.
    """
    rows = read_rows(path)
    kept = [row for row in rows if row.get("step", 0) <= step]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in kept)
    if path.is_file() and path.read_bytes() != content:
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    return len(rows) - len(kept)


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows in a single write, so that a kill leaves them whole or absent or torn at the end.

    Raises:
        OSError: nothing of them is left in the file.
    """
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    with open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(content)
            if written != len(content):  # the disk became full in the middle
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            raise


class RowFile:
    """Rows added to a JSON-lines file. What the disk refuses waits in memory and is tried again with the next row.

    Args:
        path: the file; its folder must be there.
        say: told once when the disk refuses a row, and once when it takes rows again.
    """

    def __init__(self, path: Path, say: Callable[[str], object] = print):
        self.path = path
        self.say = say
        self.waiting: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Write a row, or keep it for later.

        Raises:
            StorageFailure: the folder is gone.
        """
        fault = self._write([*self.waiting, row])
        if fault is not None and not self.waiting:
            self.say(
                f"WARNING: {self.path} can't be written: {fault.strerror or fault}. Training goes on; its rows are "
                "kept in memory and tried again. Free some space (or mend the folder): until then no checkpoint is made"
            )
        elif fault is None and self.waiting:
            self.say(f"{self.path} is written again, with all its rows")
        self.waiting = [] if fault is None else [*self.waiting, row]

    def settle(self) -> None:
        """Write all rows that wait.

        Raises:
            StorageFailure: the disk still refuses them.
        """
        if self.waiting:
            *self.waiting, last = self.waiting
            self.add(last)
        if self.waiting:
            raise StorageFailure(
                f"{self.path} can't be written. Free some space (or mend the folder), then run the same command again"
            )

    def _write(self, rows: list[dict[str, Any]]) -> OSError | None:
        try:
            append_rows(self.path, rows)
        except FileNotFoundError:
            raise StorageFailure(folder_gone(self.path.parent)) from None
        except OSError as error:
            return error
        return None


def folder_gone(run: Path) -> str:
    """The sentence for a run directory that was there when the run began."""
    return (
        f"run.dir={run} is gone: it was deleted or moved while the run was going on. Put it back, then run the same "
        "command again; without it the same command begins anew"
    )
