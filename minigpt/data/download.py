"""One small file from the network, with short time limits and its SHA-256 known in advance."""

import hashlib
import queue
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse

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
