"""Locks that are freed when the process that holds them ends, and the claim of a sweep's worker on a trial."""

import contextlib
import fcntl
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from minigpt.files import lock

BEAT_SECONDS = 20.0  # between two renewals of a claim
STALE_SECONDS = 120.0  # after so long without a renewal a claim of another machine is dropped


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Admit one process at a time to a `with` block, on all machines that share the file.

    Yields:
        False if the file system has no locks.
    """
    with open(path, "a") as file:
        yield lock(file)


class Claim:
    """The right to run a trial. The trial's processes inherit it, so it lasts until the last of them has ended."""

    def __init__(self, file: IO[str]):
        self.file = file
        self.beaten = time.monotonic()

    def beat(self) -> None:
        """Show other machines that this one is alive."""
        if time.monotonic() - self.beaten > BEAT_SECONDS:
            self.beaten = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.file.fileno())

    def release(self) -> None:
        """Give up the right."""
        with contextlib.suppress(OSError):
            self.file.truncate(0)
        self.file.close()


def claim(path: Path) -> Claim | None:
    """Claim a trial; return None if another worker has it: on this machine, or on another that renewed it lately."""
    path.parent.mkdir(exist_ok=True)
    file = open(path, "a+")  # noqa: SIM115 - stays open: closing it frees the lock
    try:
        locked = lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    machine, process = owner(path)
    taken = machine != "" and _age(path) < STALE_SECONDS  # on some shared file systems other machines don't see locks
    if machine == platform.node():
        taken = not locked and process != os.getpid() and is_alive(process)
    if taken:
        file.close()
        return None
    file.truncate(0)
    file.write(f"{platform.node()} {os.getpid()}")
    file.flush()
    return Claim(file)


def _age(path: Path) -> float:
    """Return the seconds since a file was touched, by the clock of its file system, which may be on a server."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".clock-") as now:
        return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime


def owner(path: Path) -> tuple[str, int]:
    """Return machine and process that hold or held a claim; ("", 0) if nobody."""
    with contextlib.suppress(OSError, ValueError):
        machine, _, process = path.read_text().partition(" ")
        return machine, int(process)
    return "", 0


def is_alive(process: int) -> bool:
    """Return whether this machine has a process of that number."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
