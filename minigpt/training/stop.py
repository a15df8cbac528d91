"""What asks a training to stop; obeyed when an optimizer step ends."""

import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StopRequest:
    """What one process asks for, or all of them together."""

    stop: bool = False  # after this step, with a checkpoint; the same command continues the run
    requeue: bool = False  # and SLURM is asked to run the job again
    out_of_time: bool = False  # max_minutes is over: the run is finished
    by_callback: bool = False  # a user's callback has set trainer.should_stop


def stop_request(received: int | None, stop_file: Path, *, out_of_time: bool, by_callback: bool) -> StopRequest:
    """Return what this process asks for: the first signal that it received, or a file that asks as a signal does."""
    requeue = received is not None and received == getattr(signal, "SIGUSR1", None)
    return StopRequest(received is not None or stop_file.exists(), requeue, out_of_time, by_callback)
