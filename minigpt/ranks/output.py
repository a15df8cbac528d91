"""A screen that may go away: a closed terminal or pipe must not end a run."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # errors on writing to a closed pipe, terminal or descriptor


class LastingStream:
    """A text stream on which writing never fails, also when nobody reads any more.

    Args:
        stream: to write to; None (in a process that was started without it) drops everything.
    """

    def __init__(self, stream: Any):
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115 - stays open

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write without failing; characters that the encoding can't show become question marks."""
        try:
            self._survive(self._stream.write, text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self._survive(self._stream.write, text.encode(encoding, "replace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush without failing."""
        self._survive(self._stream.flush)

    def _survive(self, work: Callable[..., object], *arguments: str) -> None:
        try:
            work(*arguments)
        except UnicodeEncodeError:
            raise
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) or error.errno in GONE:
                self._let_go()  # not for a full disk, for example: the next line may succeed

    def _let_go(self) -> None:
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())

    def settle(self) -> None:
        """Write what is buffered, or drop it and all that follows: else Python would fail again when it exits."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._let_go()


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Let stdout and stderr outlive their terminal in a `with` block."""
    out, errors = LastingStream(sys.stdout), LastingStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            yield
        finally:
            out.settle()
            errors.settle()
