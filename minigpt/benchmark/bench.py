"""What the parts of a benchmark share: the plan, the folder, the machine, and how a result looks."""

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.benchmark.measurement import measure
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import markdown
from minigpt.data.prepare import Prepared
from minigpt.machine.hardware import usable_cores

BUSY = 0.5  # load average above which figures are doubtful
FLAGS = ("amx_bf16", "amx_tile", "avx512_bf16", "avx512f", "avx2", "asimd", "bf16", "sve")


@dataclass(frozen=True)
class Section:
    """What came out of a part: a table whose second column holds the main figure."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    note: str = ""
    summary: str = ""  # for the last line of all
    void: bool = False  # whether its speeds don't count

    @property
    def text(self) -> str:
        """The section in Markdown."""
        return f"{markdown(self.heads, self.rows)}\n\n{self.note}".rstrip()


@dataclass
class Bench:
    """A benchmark that is going on."""

    plan: Plan
    folder: Path  # for all files; the tokens are in folder/tokens
    prepared: Prepared
    choices: dict[str, Any]  # what minigpt.benchmark.steps.probe returned
    say: Callable[[str], object] = print
    tokens_per_second: float | None = None  # of training, once that is known

    def training(self, changes: Mapping[str, Any] | None = None, *, steps: int = 0, tokens: str = "tokens") -> Any:
        """See `Plan.training`."""
        return self.plan.training(self.folder / tokens, changes or {}, steps)

    def measure(self, job: str, **task: Any) -> dict[str, Any]:
        """See minigpt.benchmark.measurement.measure."""
        return measure(self.folder, job, **{"threads": self.choices["threads"], **task})

    def tell(self, number: int, text: str) -> None:
        """Say what a round brought."""
        self.say(f"Round {number + 1}/{self.plan.config.rounds}  {text}")


def describe_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor, its vector extensions, and the software's versions."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    facts = {key.strip(): value.strip() for key, value in pairs}  # of the last core: they are alike
    name = facts.get("model name") or platform.processor() or platform.machine()
    family = f" (family {facts['cpu family']} model {facts.get('model')})" if "cpu family" in facts else ""
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    able = " ".join(flag for flag in FLAGS if flag in flags) or "no vector extensions known"
    return (
        f"Machine    {name}{family}, {usable_cores()} cores, {able}; "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"torch {importlib.metadata.version('torch')}"
    )


def describe_moment(load: tuple[float, ...] | None = None) -> str:
    """Date and load averages, and a warning where something else is running."""
    load = load or os.getloadavg()
    line = time.strftime("Date       %Y-%m-%d %H:%M:%S %Z, load average ") + " ".join(f"{each:.2f}" for each in load)
    if load[0] <= BUSY:
        return line
    return (
        f"{line}\nWARNING: the load average is {load[0]:.2f}: something else is running, and what follows measures "
        f"that, too. Wait until it is below {BUSY:g} for figures that hold"
    )


def commit_of(folder: Path) -> str:
    """The commit of a checkout, with a mark if files were changed; "unknown" if the folder is none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"
