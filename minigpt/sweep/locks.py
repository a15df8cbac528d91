"""Locks that end with the process that holds them, and the claim of a sweep on a trial."""

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

BEAT_SECONDS = 20.0  # a claim is renewed so often
STALE_SECONDS = 120.0  # a claim of another machine that was not renewed for so long is dropped


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """A block that one process at a time is in, on all machines that share the file."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Claim:
    """The right to run a trial. The trial's processes inherit it, so it lasts until the last of them is gone."""

    def __init__(self, file: IO[str]):
        self.file = file
        self.beaten = time.monotonic()

    def beat(self) -> None:
        """Tell other machines that this one is alive."""
        if time.monotonic() - self.beaten > BEAT_SECONDS:
            self.beaten = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.file.fileno())

    def release(self) -> None:
        """Give the right back."""
        with contextlib.suppress(OSError):
            self.file.truncate(0)
        self.file.close()


def claim(path: Path) -> Claim | None:
    """Take a trial, or None if somebody has it: here, or on another machine that has been heard of lately."""
    path.parent.mkdir(exist_ok=True)
    file = open(path, "a+")  # noqa: SIM115 - stays open: closing it frees the lock
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.seek(0)
        owner = file.read().partition(" ")[0]
        # Not every shared file system passes locks on to other machines; times are those of the file's own server.
        if owner and owner != platform.node() and _age(path) < STALE_SECONDS:
            file.close()
            return None
        file.truncate(0)
        file.write(f"{platform.node()} {os.getpid()}")
        file.flush()
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        raise
    return Claim(file)


def _age(path: Path) -> float:
    """Seconds since a file was touched, by the clock of its file system."""
    probe = path.with_name(f".clock-{platform.node()}-{os.getpid()}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def owner(path: Path) -> tuple[str, int]:
    """Machine and process that hold or held a claim; ("", 0) if nobody."""
    with contextlib.suppress(OSError, ValueError):
        machine, _, process = path.read_text().partition(" ")
        return machine, int(process)
    return "", 0
