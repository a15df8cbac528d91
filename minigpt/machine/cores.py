"""How many CPU cores and how much memory this process may use, within a container's limits (cgroup version 2)."""

import contextlib
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the number of cores this process may run on.

    A container with a share of two out of 64 cores sees all of them, and 64 threads would be far slower than two.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no limit
        quota, period = map(int, (CGROUP / "cpu.max").read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


def memory_limit() -> float:
    """Return the bytes that control groups leave this process; infinite if there is no limit."""
    limits = [math.inf]
    with contextlib.suppress(OSError, StopIteration):
        group = next(line[3:] for line in GROUPS.read_text().splitlines() if line.startswith("0::"))
        place = CGROUP / group.lstrip("/")
        for folder in (place, *place.parents):  # a container sees its own group as the root
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / "memory.max").read_text()))
            if folder == CGROUP:
                break
    return min(limits)
