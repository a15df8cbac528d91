"""One small file from the network, with short time limits and its SHA-256 known in advance."""

import hashlib
import queue
import threading
import urllib.request

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 60.0


def download(url: str, sha256: str) -> bytes:
    """Return the content of the file at `url`.

    It is fetched in a thread, since looking up a host name can't be given a time limit.

    Raises:
        ConnectionError: it can't be had; the text says why (one clause, no remedy).
    """
    steps: queue.Queue[bytes | Exception] = queue.Queue()

    def fetch() -> None:
        try:
            with urllib.request.urlopen(url, timeout=2 * _CONNECT_SECONDS) as answer:
                steps.put(b"")
                steps.put(answer.read())
        except Exception as error:
            steps.put(error)

    threading.Thread(target=fetch, daemon=True).start()
    for seconds in (_CONNECT_SECONDS, _TOTAL_SECONDS):  # connected, received
        try:
            step = steps.get(timeout=seconds)
        except queue.Empty:
            raise ConnectionError(f"no answer within {seconds:g} s") from None
        if isinstance(step, Exception):
            raise ConnectionError(str(step))
        content = step
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise ConnectionError(f"the file there has SHA-256 {got}, wanted {sha256}")
    return content
