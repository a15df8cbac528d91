"""JSON lines of a run: metrics.jsonl, samples.jsonl, events.jsonl. One row a line; a torn last line is left out."""

import errno
import json
import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from minigpt.faults import StorageFailure
from minigpt.files import is_gone, patiently, read_plain, write_file

MAX_BYTES = 1 << 30  # of a file of rows: five million of them; a larger one is none of ours
TIMINGS = ("seconds", "tokens_per_second", "mfu")  # the keys that differ between equal runs


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file; lines that are no JSON object, or torn, are left out."""
    try:
        lines = read_plain(path, MAX_BYTES).split(b"\n")
    except OSError:
        return []
    return [row for line in lines if (row := parse_row(line)) is not None]


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line, or None if the line holds none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def cut_rows_after(path: Path, step: int, say: Callable[[str], object] = print) -> int:
    """Remove rows of steps after `step`, which a run that continues from there will write again.

    Damaged lines are removed, too. Then a copy of the file as it was is kept, unless only its last line was torn, as
    after a kill.

    Args:
        path: the file; it may be missing.
        step: of the last row to keep.
        say: takes a sentence about damaged lines.

    Returns:
        How many rows were removed.
    """
    content = b"" if is_gone(path) else patiently(lambda: read_plain(path, MAX_BYTES))
    lines = content.split(b"\n")
    steps = [_step_of(line) for line in lines]
    damaged = sum(each is None and line != b"" for each, line in zip(steps[:-1], lines[:-1], strict=True))
    if damaged:
        aside = keep_aside(path, content, "damaged")
        say(f"{path}: {damaged} damaged line(s) left out; the file as it was is kept as {aside.name}")
    kept = [line + b"\n" for each, line in zip(steps, lines, strict=True) if each is not None and each <= step]
    if content != b"".join(kept):
        write_file(path, b"".join(kept))
    return sum(each is not None and each > step for each in steps)


def keep_aside(path: Path, content: bytes, mark: str) -> Path:
    """Write a file's content beside it, and return the new path, the first that is free: NAME.mark, NAME.mark-2, ..."""
    names = (path.with_name(f"{path.name}.{mark}{f'-{number}' if number > 1 else ''}") for number in count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    write_file(aside, content)
    return aside


def keep_history(metrics: Path, samples: Path, every_steps: int) -> list[Path]:
    """Copy the rows of a run that begins again without a checkpoint, if they show that it had checkpoints.

    Args:
        metrics: its rows.
        samples: its samples.
        every_steps: of the run's checkpoints.

    Returns:
        The copies; none if the run may have been killed before its first checkpoint.
    """
    rows = [row for row in read_rows(metrics) if _is_step(row.get("step"))]
    if not any(row.get("val/loss") is not None or 0 < every_steps < row["step"] for row in rows):
        return []
    files = [path for path in (metrics, samples) if not is_gone(path)]
    return [keep_aside(path, read_plain(path, MAX_BYTES), "before") for path in files]


def _step_of(line: bytes) -> float | None:
    """Return the step of the row in a line, or None if the line is no row of a step."""
    step = (parse_row(line) or {}).get("step")
    return step if _is_step(step) else None


def _is_step(step: Any) -> bool:
    return isinstance(step, int | float) and not isinstance(step, bool) and step >= 0


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows in a single write, so that a kill leaves them whole or absent or torn at the end.

    Raises:
        OSError: they can't be written; nothing of them is left in the file.
    """
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":  # torn, by a power cut or a disk that didn't even take the truncation below
                content = b"\n" + content
        try:
            if file.write(content) != len(content):  # the disk became full in the middle
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            raise


class RowFile:
    """A JSON-lines file to which rows are added. Rows that the disk refuses are kept, and tried again with the next.

    Args:
        path: the file; its folder must be there.
        say: takes a sentence when the disk refuses a row, and one when it takes rows again.
    """

    def __init__(self, path: Path, say: Callable[[str], object] = print):
        self.path = path
        self.say = say
        self.waiting: list[dict[str, Any]] = []

    def add(self, *rows: dict[str, Any]) -> None:
        """Write rows after those that wait, or keep all of them for later.

        Raises:
            StorageFailure: the folder is gone.
        """
        was_waiting = bool(self.waiting)
        self.waiting += rows
        try:
            append_rows(self.path, self.waiting)
        except FileNotFoundError:
            raise folder_gone(self.path.parent) from None
        except OSError as error:
            if not was_waiting:
                wrong = f"{self.path} can't be written: {error.strerror or error}"
                until = "its rows are kept in memory and tried again, and no checkpoint is made. Free some space"
                self.say(f"WARNING: {wrong}. Training goes on: {until}")
            return
        self.waiting = []
        if was_waiting:
            self.say(f"{self.path} is written again, with all its rows")

    def settle(self) -> None:
        """Write all rows that wait.

        Raises:
            StorageFailure: the disk still refuses them.
        """
        if self.waiting:
            self.add()
        if self.waiting:
            raise StorageFailure(f"{self.path} can't be written. Free some space, then run the same command again")


def folder_gone(run: Path) -> StorageFailure:
    """Return the fault for a run directory that has disappeared since the run began."""
    remedy = "Put it back, then run the same command again; without it the same command begins anew"
    return StorageFailure(f"run.dir={run} is gone: it was deleted or moved while the run was going on. {remedy}")
