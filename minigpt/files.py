"""The one reader and writer of small files, and a lock, which the system frees when its process ends.

Files appear under their names only when they are whole: written under another name, flushed, then renamed.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from minigpt.faults import StorageFailure, UserFault

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # on Lustre, some FUSE


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, which replaces `path` durably when the block ends.

    After an OSError `path` is as it was, and nothing is left behind.
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
    """Write a file whole, or leave it as it was. Text is written as UTF-8, with ? for lone surrogates."""
    with replaced(path) as temporary, open(temporary, "xb") as file:
        file.write(content.encode(errors="replace") if isinstance(content, str) else content)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole, or leave it as it was."""
    write_file(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserFault(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UserFault(f"{path} is not JSON: it is damaged") from None


@contextlib.contextmanager
def writing(what: object, remedy: str = "Make room, or give another place") -> Iterator[None]:
    """Say of what is written inside that it can't be, as a StorageFailure."""
    try:
        yield
    except OSError as error:
        raise StorageFailure(f"{what} can't be written: {error.strerror or error}. {remedy}") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Bring a file's bytes, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # a file system that can't do folders
            raise
    finally:
        os.close(descriptor)


def lock(file: IO, flags: int = fcntl.LOCK_EX) -> bool:
    """Lock a file; return False if the file system has no locks. With LOCK_NB, BlockingIOError if it is locked."""
    try:
        fcntl.flock(file, flags)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def lock_or_wait(file: IO, say: Callable[[], object]) -> bool:
    """Lock a file as `lock` does; if another process holds it, call `say`, and wait for it."""
    try:
        return lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say()
        return lock(file)
