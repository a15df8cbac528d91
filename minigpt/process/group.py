"""The processes of one run: start them, or join those that torchrun started, and let them agree.

Several devices mean one process each. The plain command is rank 0 and starts the others as Lightning's launcher
does, by running the same command again with LOCAL_RANK set; we start them ourselves, because Lightning's own watch
over them knows only one end, SIGKILL. Under torchrun all are there already. Either way one process group is formed
before anything is read or written, and Lightning finds it formed.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.config.schema import TrainerConfig
from minigpt.faults import BUG, UserFault, explain
from minigpt.process.heartbeat import START_SECONDS, Heartbeat
from minigpt.process.output import no_output
from minigpt.process.signals import Signals

START = timedelta(seconds=START_SECONDS)
NEVER = timedelta(days=365)  # a collective waits as long as it must; the heartbeat knows who is alive


@dataclass(frozen=True)
class Processes:
    """Rank and number of the run's processes, and what they do together."""

    rank: int = 0
    world_size: int = 1
    signals: Signals = field(default_factory=Signals)

    def wait(self) -> None:
        """Until all ranks are here."""
        self.gather("")

    def gather(self, text: str) -> list[str]:
        """What each rank passes, in the order of ranks. Waits for all."""
        if self.world_size == 1:
            return [text]
        mine = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        sizes = _all_gather(torch.tensor([len(mine)]))
        room = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        room[: len(mine)] = mine
        parts = zip(_all_gather(room), sizes, strict=True)
        return [bytes(part[: int(size)].tolist()).decode() for part, size in parts]

    def require_equal_on_all_ranks(self, what: str, mine: Mapping[str, object]) -> None:
        """Make sure that all ranks have the same `mine`. Waits for all.

        Raises:
            UserFault: naming the first rank and the keys that differ; on every rank.
        """
        said = [line.splitlines() for line in self.gather("\n".join(f"{key}: {mine[key]!r}" for key in sorted(mine)))]
        for rank, lines in enumerate(said):
            if lines != said[0]:
                theirs, ours = (sorted(set(one) - set(other)) for one, other in ((lines, said[0]), (said[0], lines)))
                raise UserFault(
                    f"rank {rank} has {what} other than rank 0: {'; '.join(theirs)} where rank 0 has "
                    f"{'; '.join(ours)}. Start all processes of a run with one command, on the same files"
                )

    @contextlib.contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """A block that rank 0 does alone, then all others."""
        if self.rank:
            self.wait()
        yield
        if not self.rank:
            self.wait()


def _all_gather(tensor: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


@contextlib.contextmanager
def joined(trainer: TrainerConfig, device: str, signals: Signals) -> Iterator[Processes]:
    """A `with` block with all processes of the run. An exception in one of them ends all, and is printed once.

    Args:
        trainer: devices and strategy.
        device: "cuda" or "cpu" (mps is never more than one device).
        signals: a second Ctrl-C in any process ends all.
    """
    started_by_others = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if started_by_others not in (1, trainer.devices):
        raise UserFault(
            f"{started_by_others} processes were started, but trainer.devices={trainer.devices}. "
            f"Add trainer=ddp trainer.devices={started_by_others} (one machine), or start one process only"
        )
    if trainer.devices == 1:
        yield Processes(signals=signals)
        return
    rank = int(os.environ["RANK"]) if started_by_others > 1 else 0
    store, heartbeat = _meet(rank, trainer.devices, started_by_others > 1)
    processes = Processes(rank, trainer.devices, signals)
    signals.quiet = rank > 0
    signals.before_exit = heartbeat.fail
    try:
        with no_output() if rank else contextlib.nullcontext():
            _form_group(processes, store, device)
            yield processes
    except BaseException as error:
        signals.noted_only = True  # nothing may disturb the way out
        code, text = explain(error)
        heartbeat.fail(code, f"rank {rank}: {text}" if rank and code == BUG else text)
    heartbeat.leave()
    dist.destroy_process_group()


def _meet(rank: int, world_size: int, all_are_started: bool) -> tuple[dist.Store, Heartbeat]:
    """Start what must be started, and connect the heartbeat through a store that rank 0, or torchrun, keeps."""
    children: dict[int, subprocess.Popen] = {}
    heartbeat = Heartbeat(rank, world_size, children)
    place = {}
    if all_are_started:
        kept, _, _ = next(dist.rendezvous("env://", rank, world_size, timeout=START))
    else:
        kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=START)
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(kept.port), "WORLD_SIZE": str(world_size)}
    # torchrun's store still holds what the processes before a restart have said.
    store = dist.PrefixStore(f"minigpt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", kept)
    if rank:
        heartbeat.join(store.get("heartbeat").decode())
    else:
        store.set("heartbeat", heartbeat.listen())
    for other in range(1, world_size if place else 1):
        names = {"RANK": str(other), "LOCAL_RANK": str(other)}
        children[other] = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=os.environ | place | names)
    return store, heartbeat


def _form_group(processes: Processes, store: dist.Store, device: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=store,
        rank=processes.rank,
        world_size=processes.world_size,
        timeout=NEVER,
    )


def torchrun_id() -> str | None:
    """Which torchrun this process belongs to; the same for the processes that it starts again."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if run is None else f"{run} {os.getppid()}"


def is_restart() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


STOP_MARK = ".stopped"


def mark_stopped(run_dir: Path) -> None:
    """Remember that this torchrun was asked to stop, for the processes that it will start again all the same."""
    identity = torchrun_id()
    if identity is not None and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        with contextlib.suppress(OSError):
            run_dir.mkdir(parents=True, exist_ok=True)
            (run_dir / STOP_MARK).write_text(f"{identity} {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n")


def was_asked_to_stop(run_dir: Path) -> bool:
    """Whether the torchrun that started this process again was asked to stop before (says so); else forget it."""
    mark = run_dir / STOP_MARK
    identity = torchrun_id()
    if identity is not None and is_restart() and mark.is_file() and mark.read_text().startswith(identity + " "):
        if os.environ.get("RANK", "0") == "0":
            print("This run was asked to stop. torchrun began it again all the same; a new torchrun continues it.")
        return True
    with contextlib.suppress(OSError):
        mark.unlink()
    return False
