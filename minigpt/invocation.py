"""How this process was started: as a command at the terminal, as a process by minigpt, or as a rank by a launcher."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minigpt.config.schema import TrainerConfig

PACKAGE = Path(__file__).resolve().parent

# torchrun sets these for each process. If some are missing, the others are left over from another job.
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
PARENT = "MINIGPT_PARENT"  # set for the ranks that the plain command starts: a folder of their own


def command_line(command: str) -> list[str]:
    """Return the words that start a command as a process: from a checkout or an installed wheel, in any folder."""
    return [sys.executable, str(PACKAGE), command]


def typed(command: str) -> str:
    """Return a command as a user types it: `minigpt sample`, or `.venv/bin/minigpt sample` in no active environment."""
    folder = Path(sys.executable).parent
    if (folder / "minigpt").is_file():
        return f"{_program(folder / 'minigpt')} {command}"
    return f"{_program(folder / 'python')} -m minigpt {command}"


def typed_words() -> list[str]:
    """Return the command line of this process as it was typed, for the record of a run."""
    started = Path(sys.argv[0])
    if started.name == "minigpt":
        return ["minigpt", *sys.argv[1:]]
    return ["python", *(("-m", "minigpt") if started == PACKAGE / "__main__.py" else sys.argv[:1]), *sys.argv[1:]]


def _program(path: Path) -> str:
    """Return the name of a program if the shell finds it by its name, else its path."""
    if shutil.which(path.name) == str(path):
        return path.name
    folder = Path.cwd()
    return shlex.quote(str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path))


class Launched(NamedTuple):
    """The place of this process among all that a launcher has started."""

    rank: int
    world_size: int
    local_rank: int  # among the processes of this host
    local_size: int  # processes of this host

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return -(-self.world_size // self.local_size)


def launched(trainer: TrainerConfig) -> Launched | None:
    """Return this process's place; None if no launcher started it.

    SLURM's variables count only if this step has as many tasks as the config wants, or if the config names no number:
    a sweep's workers are tasks of a step, too, and the trainings that they start are not one run.
    """
    if (rank := launched_rank()) is not None:
        world_size, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
        return Launched(rank, world_size, local_rank, _number("LOCAL_WORLD_SIZE") or world_size)
    tasks, on_node = _number("SLURM_STEP_NUM_TASKS"), re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    rank, on_host = _number("SLURM_PROCID"), _number("SLURM_LOCALID")
    if trainer.strategy == "auto" or tasks is None or tasks < 2 or on_node is None or rank is None or on_host is None:
        return None
    if trainer.nodes == 1 and trainer.devices not in (1, tasks):
        return None
    return Launched(rank, tasks, on_host, int(on_node[0]))


def launched_rank() -> int | None:
    """Return the rank that torchrun or the plain command gave this process, or None."""
    rank, world_size, local_rank = map(_number, LAUNCHED[:3])
    if rank is None or world_size is None or local_rank is None or not all(map(os.environ.get, LAUNCHED)):
        return None
    return rank if rank < world_size else None


def prints() -> bool:
    """Return whether this process prints what all ranks of a run would print before they have formed their group."""
    rank = launched_rank() if PARENT in os.environ or "TORCHELASTIC_RUN_ID" in os.environ else 0  # else left over
    return not rank


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
