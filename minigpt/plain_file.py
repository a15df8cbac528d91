"""Reads files that may come from others, or lie on a disk that fails for a moment. Standard library only."""

import errno
import os
import stat
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

MAX_BYTES = 1 << 30  # of a file that is read whole
READ_PAUSES = (0.1, 0.4, 1.5)  # seconds before a read that failed is tried again
ABSENT = (errno.ENOENT, errno.ENOTDIR)
# Errors for a file that is gone, no plain file, or too large; other errors say nothing about the file itself.
UNREADABLE = (*ABSENT, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EFBIG)

Result = TypeVar("Result")


def open_plain(path: str | Path, *, links: bool = True) -> BufferedReader:
    """Open a plain file for reading. A pipe, which never ends, or a device is not opened.

    Args:
        path: the file.
        links: whether the path may be a link to the file: a link can lead to another user's file.

    Raises:
        OSError: it can't be opened, or is no plain file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "it is a link to another place", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return open(descriptor, "rb")


def read_plain(path: str | Path, most: int = MAX_BYTES, *, links: bool = True) -> bytes:
    """Return the bytes of a plain file.

    Args:
        path: the file.
        most: bytes at most; nothing is read of a larger file, which may be sparse.
        links: as in `open_plain`.

    Raises:
        OSError: it can't be read, is no plain file, or is larger.
    """
    with open_plain(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{Path(path).name} is {size:,} bytes; at most {most:,} are read", str(path))
        return file.read(most)


def patiently(read: Callable[[], Result]) -> Result:
    """Return what `read` returns. If the system refuses for a moment (ESTALE, EIO, EMFILE ...), try again.

    Raises:
        OSError: the system refuses each time, or the file is gone or no plain file.
    """
    for pause in READ_PAUSES:
        try:
            return read()
        except OSError as error:
            if error.errno in UNREADABLE:
                raise
        time.sleep(pause)
    return read()


def is_gone(path: Path) -> bool:
    """Return whether nothing is there; False if the disk can't say. (`not path.exists()` would raise then.)"""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in ABSENT
    return False
