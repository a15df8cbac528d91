"""Runs one training for a sweep or `train.py -m`, and ends it when they are gone: `supervise.py FDS COMMAND ...`.

A process between the two, because a process that was killed can't clean up behind itself. Each byte that it reads from
the sweep through its stdin is a signal for the training; SIGKILL ends it and all it started. The end of stdin means
that the sweep was killed: the training is asked to stop with a checkpoint, and killed after a while. FDS are
descriptors that the training inherits, too; the first is a pipe that is told the training's process group, and 0 at its
end. The supervisor ends as the training ended. Standard library only, so that it starts at once.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

PATIENCE_SECONDS = 60.0  # from the sweep's end to the training's: a step, and a checkpoint on the disk
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)  # the sweep decides when the training ends


def main(descriptors: list[int], command: list[str]) -> int:
    """Return the training's exit code; if a signal ended it, end by the same signal."""
    for ignored in IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    training = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=restore_signals, pass_fds=descriptors
    )
    os.write(descriptors[0], f"{training.pid} ".encode())
    deadline = None
    listening = [0]
    while training.poll() is None:
        ready, _, _ = select.select(listening, [], [], 0.05)
        numbers = os.read(0, 1024) if ready else None
        if numbers == b"":
            listening = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            numbers = bytes([signal.SIGTERM])
        for number in numbers or b"":
            if number == signal.SIGKILL:
                kill_group(training)
            else:
                training.send_signal(number)
        if deadline is not None and time.monotonic() > deadline:
            kill_group(training)
    kill_group(training)  # what it started and left behind
    os.write(descriptors[0], b"0 ")
    if training.returncode < 0:
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-training.returncode, signal.SIG_DFL) if training.returncode != -signal.SIGKILL else None
        os.kill(os.getpid(), -training.returncode)
    return training.returncode


def restore_signals() -> None:
    """Let the training be ended by the signals that are ignored here."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)


def kill_group(training: subprocess.Popen) -> None:
    """Kill the training's whole process group, whose leader it is."""
    with contextlib.suppress(OSError):
        os.killpg(training.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main([int(each) for each in sys.argv[1].split(",")], sys.argv[2:]))
