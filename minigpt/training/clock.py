"""Training time, without validation, samples and saves."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Counts seconds while it runs.

    Args:
        seconds: counted before (a run that continues).
    """

    def __init__(self, seconds: float = 0.0):
        self._counted = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Begin, or go on, to count."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Stand still."""
        self._counted = self.seconds
        self._since = None

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return self._counted + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still for the length of a `with` block."""
        running = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()
