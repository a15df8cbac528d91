"""Requests to stop: a signal, a file named STOP, the time limit. They are obeyed where an optimizer step ends."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minigpt.process.signals import Signals


@dataclass(frozen=True)
class StopRequest:
    """What a process asks for, or all of them together."""

    stop: bool = False  # after this step, with a checkpoint; the same command continues the run
    requeue: bool = False  # and SLURM is asked to run the job again
    out_of_time: bool = False  # max_minutes is over: the run is finished


class StopRequests:
    """Looks for requests to stop.

    Args:
        signals: that this process has received.
        stop_file: a file that asks as a signal does; removed when it is obeyed. None: there is no such file.
        max_minutes: of training, or None.
    """

    def __init__(self, signals: Signals, stop_file: Path | None, max_minutes: float | None):
        self.signals = signals
        self.stop_file = stop_file
        self.max_minutes = max_minutes

    def now(self, seconds: float) -> StopRequest:
        """Return what this process asks for after so many seconds of training."""
        received = self.signals.received
        asked = self.stop_file is not None and os.path.exists(self.stop_file)
        return StopRequest(
            stop=asked or received is not None,
            requeue=received is not None and received == getattr(signal, "SIGUSR1", None),
            out_of_time=self.max_minutes is not None and seconds >= 60 * self.max_minutes,
        )

    def obeyed(self) -> None:
        """Remove the file that asked."""
        if self.stop_file is not None:
            self.stop_file.unlink(missing_ok=True)


def requeue_slurm_job(say: Callable[[str], None]) -> None:
    """Ask SLURM to run this job again, if it is one. (Lightning's own way saves inside the signal handler.)"""
    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if job else os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    command = ["scontrol", "requeue", job]
    if shutil.which(command[0]) is None:
        say("SLURM: there is no scontrol here to queue the job again; #SBATCH --requeue or the same command does it")
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        reason = done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    say(f"SLURM: job {job} is queued again" if reason is None else f"SLURM: `{' '.join(command)}` failed: {reason}")
