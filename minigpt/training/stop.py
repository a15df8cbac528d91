"""Requests to stop, which take effect when an optimizer step ends: signals, a file and the time limit."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from minigpt.ranks.signals import Signals


@dataclass(frozen=True)
class StopRequest:
    """What one process asks for, or all of them together."""

    stop: bool = False  # after this step, with a checkpoint; the same command continues the run
    requeue: bool = False  # and SLURM is asked to run the job again
    out_of_time: bool = False  # max_minutes is over: the run is finished
    by_callback: bool = False  # a user's callback has set trainer.should_stop


class StopRequests:
    """What may ask this process to stop.

    Args:
        signals: that this process has received.
        stop_file: asks as a signal does; removed when the run stops for it. None: no file is looked for.
        max_minutes: of training, or None.
    """

    def __init__(self, signals: Signals, stop_file: Path | None, max_minutes: float | None):
        self.signals = signals
        self.stop_file = stop_file
        self.max_minutes = max_minutes

    def now(self, seconds: float) -> StopRequest:
        """Return what this process asks for after so many seconds of training."""
        received = self.signals.received
        asked_by_file = self.stop_file is not None and os.path.exists(self.stop_file)
        return StopRequest(
            stop=asked_by_file or received is not None,
            requeue=received is not None and received == getattr(signal, "SIGUSR1", None),
            out_of_time=self.max_minutes is not None and seconds >= 60 * self.max_minutes,
        )

    def obeyed(self) -> None:
        """Remove the file that asked for the stop, if there is one."""
        if self.stop_file is not None:
            with contextlib.suppress(OSError):
                self.stop_file.unlink()
