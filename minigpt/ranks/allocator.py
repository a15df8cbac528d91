"""What the C library does with freed memory: keep it for the next step, or give it back to the system.

Only glibc on Linux has the switches; elsewhere these functions do nothing.
"""

import ctypes
import functools
import sys

LARGE_BYTES = 1 << 20


@functools.cache  # it holds for as long as the process lives
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of giving it back to the system.

    Otherwise each step of a CPU run takes its activations from the system anew, and zeroing those pages costs it
    up to a sixth of its time.

    Source: mallopt(3): M_TRIM_THRESHOLD = -1, M_TOP_PAD = -2, M_MMAP_MAX = -4.
    """
    for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):
        _mallopt(parameter, value)


@functools.cache
def give_back_large_blocks() -> None:
    """Let the C library give each large block back to the system when it is freed.

    By default it raises the size from which it does so as large blocks are freed, and the memory that it then keeps
    becomes fragmented: a text that is read in parts takes memory in proportion to its size.

    Source: mallopt(3): M_MMAP_THRESHOLD = -3.
    """
    _mallopt(-3, LARGE_BYTES)


def _mallopt(parameter: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(parameter, value)
