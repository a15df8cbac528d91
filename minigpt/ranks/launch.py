"""The plain command with several devices: a parent that never trains starts a process for each, and ends them all."""

import signal
import sys
import tempfile
import time

from minigpt.children import Child
from minigpt.config.schema import TrainerConfig
from minigpt.faults import BUG, FINISHED, STOPPED, UserFault
from minigpt.invocation import LAUNCHED, PARENT, Launched, launched
from minigpt.ranks.signals import CTRL_C, Signals

POLL_SECONDS = 0.05


def start_ranks(trainer: TrainerConfig) -> int | None:
    """Run this command again as one process for each device, and wait for them.

    A signal is passed on to all. When one fails the others are killed: none can go on without it.

    Returns:
        The exit code of the run; None if this process is to train itself: it is alone, or one of the ranks.
    """
    count = trainer.nodes * trainer.devices
    if check_world_size(trainer) is not None or count == 1:
        return None
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    command = [sys.executable, *sys.orig_argv[1:]]
    ranks: list[Child] = []
    with Signals() as signals, tempfile.TemporaryDirectory(prefix="minigpt-") as folder:
        signals.noted_only = signals.quiet = True
        signals.before_exit = lambda: _kill(ranks)
        for rank in map(str, range(count)):
            place_of_rank = {"RANK": rank, "LOCAL_RANK": rank, PARENT: folder}
            ranks.append(Child(command, environment=shared | place_of_rank, own_session=False))
        return _wait_for_all(ranks, signals)


def _wait_for_all(ranks: list[Child], signals: Signals) -> int:
    ended: dict[int, int] = {}
    while len(ended) < len(ranks) and set(ended.values()) <= {FINISHED, STOPPED}:
        if signals.received is not None:
            for child in ranks:  # the terminal sends Ctrl-C to the ranks as well, which ignore it there
                child.stop(CTRL_C if signals.received == signal.SIGINT else signals.received)
        time.sleep(POLL_SECONDS)
        ended = {rank: code for rank, child in enumerate(ranks) if (code := child.poll()) is not None}
    _kill(ranks)
    code = max(ended.values())
    rank, killed = min(ended.items(), key=lambda pair: pair[1])
    if killed >= 0:
        return code  # the rank has printed the cause itself
    cause = "The system kills (-9) when memory runs out. The same command continues from the last checkpoint"
    print(f"Error: rank {rank} was killed (exit {killed}); all ranks end. {cause}.", file=sys.stderr)
    return BUG


def _kill(ranks: list[Child]) -> None:
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.wait()


def check_world_size(trainer: TrainerConfig) -> Launched | None:
    """Return this process's place among all that a launcher has started; None if it is alone.

    Refused are other processes than the config names, and none for several hosts.
    """
    place = launched(trainer)
    if trainer.nodes > 1 and (place is None or place.world_size == 1):
        remedy = f"torchrun --nnodes={trainer.nodes} --nproc-per-node={trainer.devices} ... on each host, or srun"
        raise UserFault(f"trainer.nodes={trainer.nodes}: processes of several hosts need a launcher. Type {remedy}")
    if place is None or place.world_size == 1:
        return None
    if (place.nodes, place.world_size) != (trainer.nodes, trainer.nodes * trainer.devices):
        remedy = f"Add trainer=ddp trainer.nodes={place.nodes} trainer.devices={place.local_size}, or start one process"
        advice = f"If no launcher did, its variables are left over from another job: unset {' '.join(LAUNCHED)}"
        number = f"{place.world_size} processes were started on {place.nodes} hosts"
        wanted = f"trainer.nodes={trainer.nodes} trainer.devices={trainer.devices}"
        raise UserFault(f"{number}, but {wanted}. {remedy}. {advice}")
    return place
