"""The one reader and writer of small files.

Files appear under their names only when they are whole: written under another name, flushed, then renamed.

And a lock on a file, which the system frees when the process that holds it ends.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

from minigpt.faults import UserFault

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # on Lustre, some FUSE
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


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, which replaces `path` durably when the block ends.

    Raises:
        OSError: it can't be written; `path` is as it was and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    flush(path.parent)


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file whole, or leave it as it was. Text is written as UTF-8, with ? for lone surrogates.

    Its folder must be there.

    Raises:
        OSError: it can't be written.
    """
    with replaced(path) as temporary, open(temporary, "xb") as file:
        file.write(content.encode(errors="replace") if isinstance(content, str) else content)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole, or leave it as it was.

    Raises:
        OSError: it can't be written.
    """
    write_file(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path, most: int = MAX_BYTES) -> Any:
    """Return what a JSON file holds.

    Raises:
        UserFault: it can't be read, is of more than `most` bytes, or is not JSON.
    """
    try:
        return json.loads(read_plain(path, most))
    except OSError as error:
        reason = str(error.strerror or error)
        large = error.errno == errno.EFBIG
        raise UserFault(f"{path.parent}/{reason}" if large else f"{path} can't be read: {reason}") from None
    except (ValueError, RecursionError):
        raise UserFault(f"{path} is not JSON: it is damaged") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file.

    Raises:
        OSError: it can't be read.
    """
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Bring a file's bytes, or the names in a folder, to the disk.

    Raises:
        OSError: the disk refuses. (That a file system can't flush folders is no fault.)
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def lock(file: IO, flags: int = fcntl.LOCK_EX) -> bool:
    """Lock a file; return False if the file system has no locks: the caller then goes on without.

    Raises:
        BlockingIOError: another process holds the lock (with LOCK_NB).
    """
    try:
        fcntl.flock(file, flags)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True
