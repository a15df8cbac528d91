"""What glibc does with freed memory: keep it for the next step. Elsewhere nothing is done."""

import ctypes
import sys


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of giving it back to the system.

    Otherwise each step of a CPU run takes its activations from the system anew, and zeroing those pages costs it
    up to a sixth of its time.

    Source: mallopt(3): M_MMAP_MAX = -4, M_TRIM_THRESHOLD = -1, M_TOP_PAD = -2.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):
            mallopt(parameter, value)
