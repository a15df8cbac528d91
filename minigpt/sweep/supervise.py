"""Runs one training for a sweep, and ends it when the sweep is gone: `python supervise.py COMMAND ...`.

A process between the two, because a process that was killed can't clean up behind itself. It reads from the sweep
through a pipe: `stop` asks the training to end after its step, with a checkpoint; `kill` ends it and all it started;
the pipe's end means that the sweep was killed, which asks first and kills after a while. It ends as the training
ended. Standard library only, so that it starts in no time.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

PATIENCE_SECONDS = 60.0  # from the sweep's end to the training's: a step, and a checkpoint on the disk


def main(command: list[str]) -> int:
    """The training's exit code; if a signal ended it, this process ends by the same."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    training = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=restore_signals)
    deadline = None
    listening = [0]
    while training.poll() is None:
        ready, _, _ = select.select(listening, [], [], 0.05)
        words = os.read(0, 1024) if ready else None
        if words == b"":
            listening = []
            deadline = time.monotonic() + PATIENCE_SECONDS
        if words is not None and b"kill" not in words:
            with contextlib.suppress(OSError):
                os.kill(training.pid, signal.SIGTERM)
        elif words is not None or (deadline is not None and time.monotonic() > deadline):
            end_all(training)
    end_all(training)  # what it started and left behind
    if training.returncode < 0:
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-training.returncode, signal.SIG_DFL) if training.returncode != -signal.SIGKILL else None
        os.kill(os.getpid(), -training.returncode)
    return training.returncode


def restore_signals() -> None:
    """What is ignored here is not to be ignored by the training."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def end_all(training: subprocess.Popen) -> None:
    """Kill the training's whole group; it is the leader of its session."""
    with contextlib.suppress(OSError):
        os.killpg(training.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
