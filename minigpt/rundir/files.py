"""Files that appear under their names only when they are whole: written under another name, flushed, then renamed.

And a lock on a file, which the system frees when the process that holds it ends.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from minigpt.faults import UserFault
from minigpt.plain_file import MAX_BYTES, open_plain, read_plain

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # on Lustre, some FUSE


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
