"""A trial's training process, as the sweep sees it: through a pipe, a file of output, and metrics.jsonl."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.rundir.rows import parse_row

SUPERVISE = Path(__file__).with_name("supervise.py")
KILL_SECONDS = 10.0  # for the supervisor to end what it was told to
NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of a torchrun around the sweep


class TrialProcess:
    """A training in a session of its own.

    Args:
        command: of the training.
        output: file that its output is added to.
        environment: variables on top of ours.
        claim: descriptor of the trial's lock, which the supervisor keeps until the training is gone.
    """

    def __init__(self, command: Sequence[str], output: Path, *, environment: Mapping[str, str], claim: int):
        output.parent.mkdir(exist_ok=True)
        variables = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        self.killed_at: float | None = None
        with open(output, "ab") as file:
            self.began_at = file.tell()  # where this process's output begins
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISE), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**variables, **environment},
                start_new_session=True,
                pass_fds=(claim,),
                bufsize=0,
            )
        self.output = output

    def stop(self) -> None:
        """Ask it to end after its step, with a checkpoint."""
        self._tell(b"stop\n")

    def kill(self) -> None:
        """End it and all it started."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
            self._tell(b"kill\n")

    def _tell(self, word: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(word)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        code = self.process.poll()
        if code is None and self.killed_at is not None and time.monotonic() > self.killed_at + KILL_SECONDS:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if code is not None and self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def said(self, lines: int = 20) -> list[str]:
        """The last lines of its output."""
        return last_lines(self.output, lines, since=self.began_at)


def last_lines(path: Path, lines: int, since: int = 0) -> list[str]:
    """The last lines of a file that say something."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip()[:500] for line in text.splitlines() if line.strip()][-lines:]


class Rows:
    """The rows of a metrics.jsonl that grows; where it was cut and written anew, they are read anew."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._inode = 0
        self._read = 0

    def refresh(self) -> bool:
        """Read what is new.

        Returns:
            Whether there is something new.
        """
        try:
            with open(self.path, "rb") as file:
                state = os.fstat(file.fileno())
                anew = state.st_ino != self._inode or state.st_size < self._read
                if anew:
                    self._inode, self._read, self.rows = state.st_ino, 0, []
                elif state.st_size == self._read:
                    return False
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
        except OSError:
            return False
        self._read += len(whole) + 1 if whole else 0
        found = [row for line in whole.split(b"\n") if (row := parse_row(line)) is not None]
        self.rows += found
        return bool(found)
