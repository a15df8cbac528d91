"""Signals that ask a run to stop: noted at once, obeyed where nothing is half done."""

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from minigpt.faults import INTERRUPTED, StoppedEarly

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
PATIENCE_SECONDS = 3.0  # for the main thread to leave what it does before the first step


class Signals:
    """Handles SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 inside a `with` block.

    Before the first step a signal raises StoppedEarly in the main thread. From `noted_only = True` on it is only
    noted: whoever makes the steps looks at `received` between two of them. A second SIGINT ends the process at
    once. A thread reads the signals too, so that even a main thread that is deep in a library, or waits for
    another process, cannot keep them from being heard.

    Attributes:
        received: the first signal that came, or None.
        quiet: whether nothing is printed (ranks other than 0).
        noted_only: whether a signal waits for the end of the step.
        before_exit: called with the exit code and the sentence before the process is ended at once; prints it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.quiet = False
        self.noted_only = False
        self.before_exit: Callable[[int, str], None] = lambda code, sentence: tell(sentence)
        self._main_thread_knows = False
        self._old_handlers: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._old_wakeup = -1

    def __enter__(self) -> "Signals":
        global _active
        if _active is not None:
            return _active  # minigpt train listens before torch is loaded
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may have handlers
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._pipe = reader, writer
        self._old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the run shall outlive its terminal
            self._old_handlers[number] = signal.signal(number, self._note)
        self._listener = threading.Thread(target=self._listen, args=(reader,), name="signals", daemon=True)
        self._listener.start()
        _active = self
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        if self._pipe is None:
            return
        _active = None
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        atexit.register(_ignore)
        os.write(self._pipe[1], b"\0")  # ends the thread, once it has said what it has to say
        self._listener.join(1.0)
        os.close(self._pipe[1])
        self._pipe = None

    def raise_if_received(self) -> None:
        """Where work without steps begins anew: obey what was noted.

        Raises:
            StoppedEarly: a signal was.
        """
        self.noted_only = False
        if self.received is not None:
            self._main_thread_knows = True
            raise StoppedEarly(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        if not self.noted_only and not self._main_thread_knows:
            self._main_thread_knows = True  # the next one must not disturb the way out
            raise StoppedEarly(number)

    def _listen(self, reader: int) -> None:
        interrupts, told = 0, False
        while (number := os.read(reader, 1)[0]) != 0:
            if number not in self._old_handlers:
                continue
            interrupts += number == signal.SIGINT
            if interrupts == 2:
                self._leave(
                    INTERRUPTED,
                    "Stopped at once. The same command goes on from the last checkpoint, if there is one.",
                )
            elif self.noted_only and not (told or self.quiet):
                told = True
                again = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
                tell(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint.{again}")
            elif not self.noted_only:
                threading.Thread(target=self._leave_if_stuck, args=(number,), daemon=True).start()
        os.close(reader)

    def _leave_if_stuck(self, number: int) -> None:
        time.sleep(PATIENCE_SECONDS)
        if not self.noted_only and not self._main_thread_knows:
            early = StoppedEarly(number)
            self._leave(early.exit_code, str(early))

    def _leave(self, code: int, sentence: str) -> None:
        self.before_exit(code, sentence)
        os._exit(code)


def tell(sentence: str) -> None:
    """Write to the screen from any thread; a screen that is gone is no matter."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{sentence}\n".encode())


def _ignore() -> None:
    """A process that is on its way out has its exit code: one more Ctrl-C must not change it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


_active: Signals | None = None


def _in_a_forked_child() -> None:
    """A loader process has no run to stop: it ends with the process that it serves."""
    if _active is None or _active._pipe is None:
        return
    signal.set_wakeup_fd(-1)  # else a signal to the child would be heard by the parent
    for number in _active._old_handlers:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)
