"""How many CPU cores this process may use."""

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores this process may run on, and no more than a container's share of their time.

    A container that was given two of 64 cores sees all of them; 64 threads on a share of two are far slower than two.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(_share() or cores)))


def _share() -> float | None:
    """Cores' worth of time that the control group allows (version 2, else 1), or None where nothing limits it."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((CGROUP / file).read_text() for file in files).split()
            return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return None
