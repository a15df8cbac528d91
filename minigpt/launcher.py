"""What torchrun, srun, or a launcher like them tells each process: which it is, of how many, on which host."""

import os
import re
from dataclasses import dataclass

from minigpt.faults import launched_rank


@dataclass(frozen=True)
class Launched:
    """This process among those that a launcher has started. Hosts are numbered by it, whatever their names."""

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
    """Return what a launcher says; None if none started this process.

    SLURM's variables are those of srun only where this step has as many tasks as the config asks for, or where it asks
    for none: a sweep's workers, too, are tasks of a step, and what they start is no part of one run.

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
