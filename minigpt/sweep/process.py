"""A training process that a sweep or `train -m` starts: its devices, exit code, output, and metrics.jsonl."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.children import LIFELINE
from minigpt.config.schema import TrainerConfig
from minigpt.launcher import LAUNCHED
from minigpt.ranks.cores import usable_cores
from minigpt.rundir.rows import parse_row


@dataclass(frozen=True)
class Slot:
    """One worker's share of the machine."""

    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them; empty: no GPU
    threads: int  # CPU threads of each process of a trial

    @property
    def environment(self) -> dict[str, str]:
        """The variables that show a trial its GPUs."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}


def make_slots(workers: int, trainer: TrainerConfig) -> list[Slot]:
    """Divide the machine's devices and cores into equal shares."""
    gpus = [] if trainer.device in ("cpu", "mps") else find_gpus()
    devices, slots = trainer.devices, []
    threads = max(1, usable_cores() // (workers * (1 if gpus else devices)))
    for number in range(workers):
        places = range(number * devices, (number + 1) * devices) if gpus else ()
        slots.append(Slot(tuple(dict.fromkeys(gpus[place % len(gpus)] for place in places)), threads))
    return slots


def find_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    import torch  # here, not above: faults of a command line are found without it

    return [str(place) for place in range(torch.cuda.device_count())]


class TrainingProcess:
    """A training in a session of its own. When this process ends, so does its stdin, and it stops with a checkpoint.

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
        self.asked = False
        variables = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
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

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the training, once, to stop with a checkpoint."""
        if not self.asked:
            self.process.send_signal(number)
        self.asked = True

    def kill(self) -> None:
        """Kill the training and all it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the training runs."""
        if self.process.returncode is None and hasattr(os, "waitid"):  # its number stays ours until it is waited for
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.kill()  # processes that it started and left behind
        code = self.process.poll()
        if code is not None and self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def last_lines(self) -> list[str]:
        """Return the last 20 lines of its output that are not empty."""
        assert self.output is not None
        try:
            text = self.output.read_bytes()[self.began_at :].decode(errors="replace")
        except OSError:
            return []
        return [line.rstrip()[:500] for line in text.splitlines() if line.strip()][-20:]


class GrowingRows:
    """Follows a metrics.jsonl that grows; if the file is replaced, it is read from its beginning again."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._inode = self._read = 0

    def refresh(self) -> bool:
        """Read new rows; return whether there were any."""
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
