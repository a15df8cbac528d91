"""One small file from the network, with short time limits and its SHA-256 known in advance."""

import contextlib
import errno
import hashlib
import os
import queue
import secrets
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 60.0


def download(url: str, sha256: str) -> bytes:
    """The file at `url`.

    The connection is made in a thread, since looking up a host name can't be given a time limit.

    Raises:
        ConnectionError: it can't be had; the text says why (one clause, no remedy).
    """
    answers: queue.Queue[HTTPResponse | Exception] = queue.Queue()

    def connect() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=_CONNECT_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        answer = answers.get(timeout=_CONNECT_SECONDS)
    except queue.Empty:
        answer = TimeoutError()
    if isinstance(answer, Exception):
        raise ConnectionError(_reason(answer))
    with answer:
        content = _read(answer)
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise ConnectionError(f"the file there has SHA-256 {got}, wanted {sha256}")
    return content


def save_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name never shows a part of it: temporary file beside it, fsync, rename.

    Raises:
        OSError: it can't be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, where the file system knows how."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _read(answer: HTTPResponse) -> bytes:
    deadline = time.monotonic() + _TOTAL_SECONDS
    content = bytearray()
    try:
        while part := answer.read(65536):
            content += part
            if time.monotonic() > deadline:
                raise ConnectionError(f"it was not complete after {_TOTAL_SECONDS:.0f} s")
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"the connection broke after {len(content):,} bytes ({_reason(error)})") from None
    wanted = answer.headers.get("Content-Length")
    if wanted is not None and len(content) != int(wanted):
        raise ConnectionError(f"the connection broke after {len(content):,} of {int(wanted):,} bytes")
    return bytes(content)


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_SECONDS:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
