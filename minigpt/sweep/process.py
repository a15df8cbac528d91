"""One training process, as a sweep and `train -m` see it: its exit code, its output, and metrics.jsonl."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.process.signals import LIFELINE
from minigpt.rundir.rows import parse_row

NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of a torchrun around the sweep


class TrainingProcess:
    """Starts a training in a session of its own. It stops with a checkpoint when we are gone: its stdin ends with us.

    Args:
        command: starts the training.
        output: file that its output is appended to; None for our own stdout and stderr.
        environment: variables on top of ours.
        lock: descriptor of a lock that is held until the training is gone.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        lock: int | None = None,
    ):
        self.output = output
        variables = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        with open(output or os.devnull, "ab") as stream:
            self.began_at = stream.tell()  # where in the file this process's output begins
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=stream if output else None,
                stderr=subprocess.STDOUT if output else None,
                env={**variables, **(environment or {}), LIFELINE: "1"},
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )

    def send(self, number: int) -> None:
        """Send a signal to the training."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the training and all it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the training runs."""
        if self.process.returncode is None and hasattr(os, "waitid"):  # it is ours as long as it was not waited for
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.kill()  # what it started and left behind
        code = self.process.poll()
        if code is not None and self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def last_lines(self, lines: int = 20) -> list[str]:
        """Return the last lines of its output that are not empty."""
        assert self.output is not None
        try:
            with open(self.output, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self.began_at, size - 64 * 1024))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line.rstrip()[:500] for line in text.splitlines() if line.strip()][-lines:]


class GrowingRows:
    """Follows a metrics.jsonl that grows; where the file was replaced, it is read from its beginning again."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._inode = self._read = 0

    def refresh(self) -> bool:
        """Read what is new; return whether there was a new row."""
        try:
            with open(self.path, "rb") as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self._inode or state.st_size < self._read:
                    self._inode, self._read, self.rows = state.st_ino, 0, []
                file.seek(self._read)
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return False
        self._read += sum(len(line) + 1 for line in lines)
        found = [row for line in lines if (row := parse_row(line)) is not None]
        self.rows += found
        return bool(found)
