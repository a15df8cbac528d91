"""A screen that may go away: a closed terminal or pipe must not end a run."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class LastingStream:
    """A text stream that takes everything, also when nobody reads any more."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As the stream's own, without its failures."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            self._abandon()
        return len(text)

    def flush(self) -> None:
        """As the stream's own, without its failures."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._abandon()

    def _abandon(self) -> None:
        """Let what is buffered, and all that comes, go nowhere; else Python fails once more when it exits."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """In a `with` block, stdout and stderr outlive their terminal."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = LastingStream(kept[0]), LastingStream(kept[1])
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = kept


@contextlib.contextmanager
def no_output() -> Iterator[None]:
    """In a `with` block, what is printed to stdout goes nowhere (ranks other than 0)."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
