"""Child processes: started with a lifeline, asked to stop, polled, killed with all that they started.

The lifeline is the child's stdin: it ends when this process ends, however it died.
"""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from minigpt.invocation import LAUNCHED

LIFELINE = "MINIGPT_LIFELINE"  # environment variable of a child that watches its stdin
CHECKPOINT_SECONDS = 60.0  # for an orphan to finish its step and save


class Child:
    """A command that runs as a child process.

    Args:
        command: its words.
        output: file that its output is appended to; None for our own stdout and stderr.
        environment: variables on top of this process's, a launcher's left out.
        own_session: whether it gets a process group of its own, so that a Ctrl-C in the terminal does not reach it and
            `kill` ends all that it started.
        lock: descriptor of a lock that stays held until the child is gone.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        own_session: bool = True,
        lock: int | None = None,
    ):
        self.output = output
        self.own_session = own_session
        self.asked = False
        variables = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
        with open(output or os.devnull, "ab") as stream:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=stream if output else None,
                stderr=subprocess.STDOUT if output else None,
                env={**variables, **(environment or {}), LIFELINE: "1"},
                start_new_session=own_session,
                pass_fds=() if lock is None else (lock,),
            )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, once, that asks the child to stop with a checkpoint."""
        if not self.asked:
            self.asked = True
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the child, in a session of its own with all that it started."""
        if self.process.returncode is None:  # else its number may be another process's by now
            with contextlib.suppress(OSError):
                (os.killpg if self.own_session else os.kill)(self.process.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the child runs."""
        if self.process.returncode is None:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self.kill()  # what it left behind
        code = self.process.poll()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def wait(self, seconds: float = math.inf) -> int | None:
        """Wait so long for the child's end; return what `poll` returns."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def last_lines(self) -> list[str]:
        """Return the last 20 lines of its output file that are not empty."""
        text = self.output.read_text(errors="replace") if self.output else ""
        return [line.rstrip()[:500] for line in text.splitlines() if line.strip()][-20:]


def watch_lifeline() -> None:
    """Stop as by SIGTERM when the parent that gave this process a lifeline ends; after a minute, end at once."""
    if os.environ.pop(LIFELINE, None) is not None:  # processes that this one starts must not read its stdin
        threading.Thread(target=_watch_stdin, name="lifeline", daemon=True).start()


def _watch_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CHECKPOINT_SECONDS)
    with contextlib.suppress(OSError):
        os.killpg(os.getpid(), signal.SIGKILL)  # all of its session, if it leads one
    os.kill(os.getpid(), signal.SIGKILL)
