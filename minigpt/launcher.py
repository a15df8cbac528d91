"""What torchrun, srun, or the plain command tells each process of a run: its rank and their number."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigpt.config.schema import TrainerConfig

# torchrun sets these for each process. If some are missing, the others are left over from another job.
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
PARENT = "MINIGPT_PARENT"  # set for the ranks that the plain command starts: a folder of their own


@dataclass(frozen=True)
class Launched:
    """The place of this process among those that a launcher has started."""

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
    rank = launched_rank()
    if rank is not None:
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
