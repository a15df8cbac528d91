"""Signals that end a run: noted at once, obeyed between two steps."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from minigpt.children import watch_lifeline
from minigpt.faults import INTERRUPTED, StoppedEarly
from minigpt.launcher import PARENT

CTRL_C = signal.SIGUSR2  # SIGINT as the parent passes it on to its ranks, which ignore the terminal's own
AT_ONCE = "Stopped at once. The same command continues from the last checkpoint, if there is one."


class Signals:
    """Handles SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 inside a `with` block, and watches the lifeline.

    Before the first step a signal raises StoppedEarly in the main thread. From `noted_only = True` on it is only
    noted: the training loop looks at `received` between two steps. A second Ctrl-C ends the process at once, from a
    thread, however deep in a library the main thread is.

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
        self._old_handlers: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._old_wakeup = -1
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def __enter__(self) -> "Signals":
        global _active
        if _active is not None:
            return _active  # the command `train` has entered it already, before torch is loaded
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may have handlers
        self._pipe = reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        is_rank = PARENT in os.environ
        for number in [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, CTRL_C if is_rank else signal.SIGINT]:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # else nohup
                self._old_handlers[number] = signal.signal(number, self._note)
        if is_rank:
            self._old_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._listener = threading.Thread(target=self._listen, args=(reader,), name="signals", daemon=True)
        self._listener.start()
        _active = self
        watch_lifeline()
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        if self._pipe is None:
            return
        writer, self._pipe, _active = self._pipe[1], None, None
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
            atexit.register(signal.signal, number, signal.SIG_IGN)  # the exit code of a run that ends stays
        os.close(writer)  # ends the thread
        self._listener.join(1.0)

    def raise_if_received(self) -> None:
        """Raise StoppedEarly if a signal was noted, before work that has no steps."""
        self.noted_only = False
        if self.received is not None:
            raise StoppedEarly(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # the terminal is gone, and writing to it would fail
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in self._terminals:
                os.dup2(nowhere, stream)
        if self.received is None:  # a second signal must not interrupt the end
            self.received = signal.SIGINT if number == CTRL_C else number
            if not self.noted_only:
                raise StoppedEarly(self.received)

    def _listen(self, reader: int) -> None:
        interrupts, told = 0, False
        while number := os.read(reader, 1):
            ctrl_c = number[0] in (signal.SIGINT, CTRL_C)
            interrupts += ctrl_c
            if interrupts == 2:
                self.before_exit()
                if PARENT not in os.environ:
                    print(f"\n{AT_ONCE}", file=sys.stderr)
                os._exit(INTERRUPTED)
            if self.noted_only and not (self.quiet or told):
                told = True
                again = " Press Ctrl-C again to stop at once." if ctrl_c else ""
                name = signal.Signals(signal.SIGINT if ctrl_c else number[0]).name
                print(f"\n{name}: stopping after this step, with a checkpoint.{again}", file=sys.stderr)
        os.close(reader)


_active: Signals | None = None
