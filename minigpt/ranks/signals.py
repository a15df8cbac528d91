"""Signals that end a run: noted at once, obeyed between two steps."""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from minigpt.children import watch_lifeline
from minigpt.faults import INTERRUPTED, StoppedEarly
from minigpt.invocation import PARENT

CTRL_C = signal.SIGUSR2  # SIGINT as the parent passes it on to its ranks, which ignore the terminal's own


class Signals:
    """Handles SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 inside a `with` block, and watches the lifeline.

    Before the first step a signal raises StoppedEarly. From `noted_only = True` on it is only noted: the training loop
    looks at `received` between two steps. A second Ctrl-C ends the process at once.

    Attributes:
        received: the first signal that came, or None.
        quiet: whether nothing is printed (ranks other than 0).
        noted_only: whether a signal waits for the end of the step.
        before_exit: called before the second Ctrl-C ends the process.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.quiet = self.noted_only = False
        self.before_exit: Callable[[], object] = lambda: None
        self._interrupts = 0
        self._old_handlers: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        global _active
        if _active is not None:
            return _active  # the command `train` has entered it already, before torch is loaded
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may have handlers
        is_rank = PARENT in os.environ
        for number in [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, CTRL_C if is_rank else signal.SIGINT]:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # else nohup
                self._old_handlers[number] = signal.signal(number, self._note)
        if is_rank:
            self._old_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        _active = self
        watch_lifeline()
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        if _active is self:
            _active = None
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
            atexit.register(signal.signal, number, signal.SIG_IGN)  # a signal at the very end changes no exit code
        self._old_handlers = {}

    def raise_if_received(self) -> None:
        """Raise StoppedEarly if a signal was noted, before work that has no steps."""
        self.noted_only = False
        if self.received is not None:
            raise StoppedEarly(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        number = signal.SIGINT if number == CTRL_C else number
        self._interrupts += number == signal.SIGINT
        if self._interrupts == 2:
            self.before_exit()
            _write("Stopped at once. The same command continues from the last checkpoint, if there is one.")
            os._exit(INTERRUPTED)
        if self.received is None:  # a second signal must not interrupt the end
            self.received = number
            if not self.noted_only:
                raise StoppedEarly(number)
            if not self.quiet:
                again = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
                _write(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint.{again}")


def _write(line: str) -> None:
    """Write a line from a handler, in which print could find its own buffer half written."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())


_active: Signals | None = None
