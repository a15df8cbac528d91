"""How many CPU cores this process may use."""

import contextlib
import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Return the number of cores this process may run on, limited by a container's share of their time.

    A container with a share of two out of 64 cores sees all of them, and 64 threads would be far slower than two.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(_share() or cores)))


def memory_limit() -> float:
    """Return the bytes that control groups leave this process (version 2, else 1); infinite if there is no limit."""
    limits = [math.inf]
    try:
        groups = [line.split(":", 2)[1:] for line in GROUPS.read_text().splitlines() if line.count(":") > 1]
    except OSError:
        return math.inf
    for controllers, path in groups:
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (CGROUP / "memory", "memory.limit_in_bytes") if controllers else (CGROUP, "memory.max")
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):  # a container sees its own group as the root
            with contextlib.suppress(OSError, ValueError):  # none there, or "max": no limit
                limits.append(int((folder / name).read_text()))
            if folder == root:
                break
    return min(limits)


def _share() -> float | None:
    """Return how many cores' time the control group allows (version 2, else 1), or None if there is no limit."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((CGROUP / file).read_text() for file in files).split()
            return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return None
