"""A lock on a file, which the system frees when the process that holds it ends."""

import errno
import fcntl
from typing import IO

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # Lustre, some FUSE


def lock(file: IO, flags: int = fcntl.LOCK_EX) -> bool:
    """Lock a file; return False where the file system has no locks, and the caller goes on without.

    Raises:
        BlockingIOError: another process has it (with LOCK_NB).
    """
    try:
        fcntl.flock(file, flags)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True
