"""A screen that may go away: a closed terminal or pipe must not end a run."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


class LastingStream:
    """A text stream that takes everything, also when nobody reads any more."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As the stream's own, without its failures."""
        self._survive(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """As the stream's own, without its failures."""
        self._survive(self._stream.flush)

    def _survive(self, work: Callable[..., object], *arguments: str) -> None:
        try:
            work(*arguments)
        except (OSError, ValueError):
            # What is buffered, and all that comes, goes nowhere; else Python fails once more when it exits.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """In a `with` block, stdout and stderr outlive their terminal."""
    out, errors = LastingStream(sys.stdout), LastingStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            yield
        finally:
            out.flush()
            errors.flush()
