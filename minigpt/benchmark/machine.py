"""What a measurement was made on: the line without which its figures say nothing."""

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

from minigpt.machine.cores import usable_cores

BUSY = 0.5  # load average above which figures are doubtful
FLAGS = ("amx_bf16", "amx_tile", "avx512_bf16", "avx512f", "avx2", "asimd", "bf16", "sve")


def describe_machine(cpuinfo: str | None = None) -> str:
    """Processor, what it can, and the software's versions."""
    text = _cpuinfo() if cpuinfo is None else cpuinfo
    facts: dict[str, str] = {}  # of the last core: they are alike
    for line in text.splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    cores = usable_cores()
    able = " ".join(flag for flag in FLAGS if flag in flags) or "no vector extensions known"
    return (
        f"Machine    {name}{f' ({chr(32).join(numbers)})' if numbers else ''}, {cores} cores, {able}; "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"torch {importlib.metadata.version('torch')}"
    )


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def describe_moment() -> str:
    """Date and load."""
    return f"Date       {time.strftime('%Y-%m-%d %H:%M:%S %Z')}, load average {' '.join(map(str, load()))}"


def load() -> tuple[float, ...]:
    """Of the last 1, 5 and 15 minutes."""
    return tuple(round(each, 2) for each in os.getloadavg())


def busy(average: float) -> str:
    """A warning where something else is running; "" where not."""
    if average <= BUSY:
        return ""
    return (
        f"WARNING: the load average is {average:g}: something else is running, and what follows measures that, too. "
        f"Wait until it is below {BUSY:g} for figures that hold"
    )


def commit_of(folder: Path) -> str:
    """The commit of a checkout, with a mark if files were changed; "unknown" if it is none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"
