"""Signals that ask a run to stop: noted at once, obeyed between steps."""

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
PATIENCE_SECONDS = 0.8  # before the first step, for the main thread to end: Ctrl-C is obeyed within a second
SCREEN_SECONDS = 1.0  # for a screen to take a sentence


class Signals:
    """Handles SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 inside a `with` block.

    Before the first step a signal raises StoppedEarly in the main thread. From `noted_only = True` on it is only
    noted: the training loop looks at `received` between two steps. A second SIGINT ends the process at once. A
    thread reads the signals too, so that they work even while the main thread is deep in a library or waits for
    another process: before the first step this thread ends the process after a moment.

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
        self._old_handlers: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._old_wakeup = -1

    def __enter__(self) -> "Signals":
        global _active
        if _active is not None:
            return _active  # the command `train` has entered it already, before torch is loaded
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
        writer, self._pipe, _active = self._pipe[1], None, None
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        atexit.register(_ignore)
        os.write(writer, b"\0")  # ends the thread, after it has printed what is left
        self._listener.join(1.0)
        os.close(writer)

    def raise_if_received(self) -> None:
        """Obey a signal that was noted, before work that has no steps.

        Raises:
            StoppedEarly: a signal was noted.
        """
        self.noted_only = False
        if self.received is not None:
            raise StoppedEarly(self.received)

    def take(self, number: int) -> None:
        """Obey a signal that came to another process of the run before its first step."""
        if self.noted_only:  # this process waits for that one in a step that never ends
            self.received = self.received or number
            early = StoppedEarly(number)
            self._leave(early.exit_code, str(early))
        elif self.received is None:
            os.kill(os.getpid(), number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:  # a second signal must not interrupt the end
            self.received = number
            if not self.noted_only:
                self.quiet = True  # there is no step to wait for, so nothing to print
                raise StoppedEarly(number)

    def _listen(self, reader: int) -> None:
        interrupts, told = 0, False
        while (number := os.read(reader, 1)[0]) != 0:
            if number not in self._old_handlers:
                continue
            interrupts += number == signal.SIGINT
            if interrupts == 2:
                again = "The same command goes on from the last checkpoint, if there is one."
                self._leave(INTERRUPTED, f"Stopped at once. {again}")
            elif self.noted_only and not (told or self.quiet):
                told = True
                again = " Press Ctrl-C again to stop at once." if number == signal.SIGINT else ""
                tell(f"{signal.Signals(number).name}: stopping after this step, with a checkpoint.{again}")
            elif not self.noted_only:
                threading.Thread(target=self._leave_if_stuck, args=(number,), daemon=True).start()
        os.close(reader)

    def _leave_if_stuck(self, number: int) -> None:
        time.sleep(PATIENCE_SECONDS)
        if not self.noted_only and self._pipe is not None:
            self.received, early = number, StoppedEarly(number)
            self._leave(early.exit_code, str(early))

    def _leave(self, code: int, sentence: str) -> None:
        self.before_exit(code, sentence)
        os._exit(code)


def tell(sentence: str) -> None:
    """Write to the screen from any thread; ignore a screen that is gone or takes nothing (Ctrl-S)."""
    writer = threading.Thread(target=_write, args=(f"\n{sentence}\n".encode(),), daemon=True)
    writer.start()
    writer.join(SCREEN_SECONDS)


def _write(text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text)


def _ignore() -> None:
    """Ignore signals while the process exits: one more Ctrl-C must not change its exit code."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


_active: Signals | None = None
