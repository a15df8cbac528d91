"""What torchrun, srun, or a launcher like them tells each process: its rank, the number of processes, and its host."""

import os
import re
from dataclasses import dataclass

from minigpt.faults import launched_rank


@dataclass(frozen=True)
class Launched:
    """The place of this process among those that a launcher has started. The launcher numbers the hosts."""

    name: str  # torchrun (or one that sets the same variables) | srun
    rank: int
    world_size: int
    local_rank: int  # among the processes of this host
    local_size: int  # processes of this host
    node: int  # number of this host
    address: str  # of rank 0's host; "" if the launcher doesn't say

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return -(-self.world_size // self.local_size)

    @property
    def is_even(self) -> bool:
        """Whether each host has as many processes as this one, with ranks in the order of hosts."""
        at = self.node * self.local_size + self.local_rank
        return self.rank == at and self.world_size == self.nodes * self.local_size


def launched(strategy: str, nodes: int, devices: int) -> Launched | None:
    """Return what a launcher tells this process; None if no launcher started it.

    SLURM's variables count only if this step has as many tasks as the config asks for, or if the config asks for no
    number: a sweep's workers are tasks of a step, too, and the trainings that they start are not one run.

    Args:
        strategy, nodes, devices: of the trainer; 1 x 1 asks for no number.
    """
    rank = launched_rank()
    if rank is not None:
        world_size, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
        local_size = _number("LOCAL_WORLD_SIZE") or world_size
        node = _number("GROUP_RANK") if "LOCAL_WORLD_SIZE" in os.environ else 0
        node = rank // local_size if node is None else node
        return Launched("torchrun", rank, world_size, local_rank, local_size, node, os.environ["MASTER_ADDR"])
    tasks, on_node = _number("SLURM_STEP_NUM_TASKS"), re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    place = [_number(name) for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")]
    if strategy == "auto" or tasks is None or tasks < 2 or on_node is None or None in place:
        return None
    if nodes == 1 and devices not in (1, tasks):
        return None
    rank, local_rank, node = (number or 0 for number in place)
    return Launched("srun", rank, tasks, local_rank, int(on_node[0]), node, os.environ.get("MASTER_ADDR", ""))


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
