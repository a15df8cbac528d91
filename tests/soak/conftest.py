"""What the long trials share: a small but complete run, in processes that can really be killed."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.rundir.rows import read_rows
from minigpt.training import finish
from minigpt.training.run import train
from tests.promises.test_resume import arguments


class Place:
    """A folder with text and runs. Processes are forked, so that none has to import torch anew."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "text.txt").write_text("".join(f"line {n} of {n * n % 17} words\n" for n in range(300)))

    def arguments(self, run: str, *extra: str) -> list[str]:
        return arguments(self.folder, run, *extra)

    def start(self, run: str, *extra: str) -> int:
        """Begin or continue a run in a process of its own; returns its id."""
        sys.stdout.flush()
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            finish.write_report = lambda *_: None  # it takes longer than the run
            code = train(compose("train", self.arguments(run, *extra)))
        finally:
            os._exit(code)

    def finish(self, run: str, *extra: str) -> Path:
        """Let a run go to its end."""
        _, status = os.waitpid(self.start(run, *extra), 0)
        assert os.waitstatus_to_exitcode(status) == 0
        return self.folder / run

    def starts(self, run: str) -> int:
        rows = read_rows(self.folder / run / "events.jsonl")
        return sum(row["event"] in ("began", "continued") for row in rows)

    def kill_after(self, seconds: float, run: str, *extra: str, while_starting: bool = False) -> bool:
        """SIGKILL a run some time after it began to train (or after its process began).

        Returns:
            Whether it was still going on.
        """
        starts = self.starts(run)
        process = self.start(run, *extra)
        while not while_starting and self.starts(run) == starts and not _ended(process):
            time.sleep(0.002)
        time.sleep(seconds)
        return _kill(process)

    def kill_at_row(self, count: int, run: str, *extra: str) -> bool:
        """SIGKILL a run as soon as its metrics.jsonl has so many rows."""
        process = self.start(run, *extra)
        metrics = self.folder / run / "metrics.jsonl"
        while len(read_rows(metrics)) < count and not _ended(process):
            time.sleep(0.002)
        return _kill(process)


def _kill(process: int) -> bool:
    try:
        os.killpg(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # not yet the leader of its group, or gone
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)
