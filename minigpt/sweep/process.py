"""One training process, as a sweep and `train.py -m` see it: through a pipe, its output, and metrics.jsonl."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import STOPPED
from minigpt.rundir.rows import parse_row

SUPERVISE = Path(__file__).with_name("supervise.py")
KILL_SECONDS = 10.0  # for the supervisor to end what it was told to end
CHECKPOINT_SECONDS = 60.0  # for a training without its supervisor to stop with a checkpoint
NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of a torchrun around the sweep


class TrainingProcess:
    """Starts a training in a session of its own, under a small supervisor that ends it when we are gone.

    Args:
        command: starts the training.
        output: file that its output is appended to; None for our own stdout and stderr.
        environment: variables on top of ours.
        lock: descriptor of a lock that is held until both the supervisor and the training are gone.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        lock: int | None = None,
    ):
        variables = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        self.output = output
        self.killed_at: float | None = None
        self.orphaned_at: float | None = None
        self.began_at = 0  # where in the file this process's output begins
        self._alive, held = os.pipe()  # the reading end says when the last holder of the other one is gone
        os.set_blocking(self._alive, False)
        descriptors = [held, *([] if lock is None else [lock])]
        with contextlib.ExitStack() as files:
            files.callback(os.close, held)
            stream = None
            if output is not None:
                output.parent.mkdir(exist_ok=True)
                stream = files.enter_context(open(output, "ab"))
                self.began_at = stream.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISE), ",".join(map(str, descriptors)), *command],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=None if stream is None else subprocess.STDOUT,
                env={**variables, **(environment or {})},
                start_new_session=True,
                pass_fds=descriptors,
                bufsize=0,
            )
        self._code: int | None = None
        self._group: int | None = None  # the training's process group; 0 once the supervisor has seen its end

    def send(self, number: int) -> None:
        """Pass a signal to the training; SIGKILL ends all that it started."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(bytes([number]))

    def kill(self) -> None:
        """End the training and all it started."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
            self.send(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while anything of the training runs.

        A training whose supervisor was killed is asked to stop with a checkpoint, and counts as stopped.
        """
        if self._code is not None:
            return self._code
        code, now = self.process.poll(), time.monotonic()
        if code is None:
            if self.killed_at is not None and now > self.killed_at + KILL_SECONDS:
                with contextlib.suppress(OSError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            return None
        if code < 0 and not self._is_gone() and self._group != 0:  # only the supervisor was killed
            if self.orphaned_at is None:
                self.orphaned_at = now
                self._send_to_group(signal.SIGTERM)
            elif self.killed_at is not None or now > self.orphaned_at + CHECKPOINT_SECONDS:
                self._send_to_group(signal.SIGKILL)
            return None
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self._alive)
        self._code = code if self.orphaned_at is None or self.killed_at is not None else STOPPED
        return self._code

    def _is_gone(self) -> bool:
        """Return whether neither the supervisor nor the training runs any more."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self._alive, 100):
                self._group = int(said.split()[-1])
            return True
        return False

    def _send_to_group(self, number: int) -> None:
        if self._group:
            with contextlib.suppress(OSError):
                os.killpg(self._group, number)

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
