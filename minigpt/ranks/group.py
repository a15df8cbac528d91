"""The processes of one run: they meet at a store, form torch's process group, and one cause ends them all."""

import contextlib
import itertools
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from minigpt.config.schema import TrainerConfig
from minigpt.faults import BUG, UserFault, explain
from minigpt.invocation import PARENT, Launched
from minigpt.ranks.launch import check_world_size
from minigpt.ranks.signals import Signals

TIMEOUT = timedelta(minutes=30)  # of a collective, and for all ranks to meet
NEVER = timedelta(days=365)
GRACE_SECONDS = 1.5  # an error is often caused by another rank's end, whose launcher ends this process meanwhile
POLL_SECONDS = 0.01
FIRST_FAULT = "first fault"  # key in the store: the exit code of the rank that failed first


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them: its rank, their number, and what they do together."""

    rank: int = 0
    world_size: int = 1
    signals: Signals = field(default_factory=Signals)
    store: dist.Store | None = None  # key-value store: each process writes, all read
    group: dist.ProcessGroup | None = None  # gloo's, for `gather`: it waits as long as another rank works
    calls: Iterator[int] = field(default_factory=itertools.count)

    def wait(self) -> None:
        """Return when all ranks have called this."""
        self.gather("")

    def gather(self, text: str) -> list[str]:
        """Return the texts that all ranks pass, in the order of ranks. Fails if a rank is gone."""
        if self.store is None:
            return [text]
        call = next(self.calls)
        keys = [f"{call} of rank {rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], text)
        work = dist.all_reduce(torch.zeros(1), group=self.group, async_op=True)
        while not work.is_completed():  # signals are handled between two looks
            time.sleep(POLL_SECONDS)
        work.wait()
        return [value.decode() for value in self.store.multi_get(keys)]

    def require_equal_on_all_ranks(self, name: str, values: Mapping[str, object]) -> None:
        """Refuse, on every rank, values that differ between ranks; name the first rank and keys that do."""
        first, *others = self.gather("\n".join(f"{key}: {values[key]!r}" for key in sorted(values)))
        for rank, text in enumerate(others, 1):
            if text != first:
                lines, expected = set(text.splitlines()), set(first.splitlines())
                wrong = f"{'; '.join(sorted(lines - expected))} where rank 0 has {'; '.join(sorted(expected - lines))}"
                remedy = "Start all processes of a run with one command, on the same files"
                raise UserFault(f"rank {rank} has {name} other than rank 0: {wrong}. {remedy}")

    @contextlib.contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Let rank 0 do a block alone, then all others."""
        if self.rank:
            self.wait()
        yield
        if not self.rank:
            self.wait()


@contextlib.contextmanager
def joined(trainer: TrainerConfig, device: str, signals: Signals) -> Iterator[Processes]:
    """Form the group of the run's processes for a `with` block. The first failure in any of them ends all of them.

    `device` is "cuda" or "cpu" (mps is never more than one device).
    """
    place = check_world_size(trainer)
    if trainer.nodes * trainer.devices == 1:
        yield Processes(signals=signals)
        return
    assert place is not None, "ranks/launch.py starts the ranks before they meet here"
    signals.quiet = place.rank > 0
    processes = Processes(place.rank, place.world_size, signals)
    try:
        processes = replace(processes, store=(store := _meet(place)))
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere if place.rank else sys.stdout):
            yield (processes := replace(processes, group=_form_group(store, place, device)))
            processes.wait()  # torchrun ends rank 0 when another exits with 75
            dist.destroy_process_group()  # NCCL's waits for the other ranks: they must still be there
    except BaseException as error:
        _end(error, processes)


def _meet(place: Launched) -> dist.Store:
    """Return the store that all ranks read and write: a file of the parent's, which opens no port, or by TCP."""
    if PARENT in os.environ:
        return dist.FileStore(f"{os.environ[PARENT]}/store", place.world_size)
    if "MASTER_ADDR" not in os.environ:  # srun: the first host of node[03-07,12]
        host = re.match(r"([^\[,]*)(?:\[(\d+))?", os.environ.get("SLURM_STEP_NODELIST", ""))
        os.environ["MASTER_ADDR"] = "".join(part or "" for part in host.groups()) if host else ""
    os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10000))
    store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=TIMEOUT))
    return _of_this_start(store, place)


def _of_this_start(store: dist.Store, place: Launched) -> dist.Store:
    """Return a part of the store that holds nothing yet: torchrun keeps its store when it starts the ranks again.

    Its hosts count restarts differently. So rank 0 names the start to each process that it meets, until all know it.
    """
    name = uuid.uuid4().hex
    if place.rank:
        store.set(f"rank {place.rank}", name)
        fresh = dist.PrefixStore(store.get(f"the start of {name}").decode(), store)
        fresh.set(f"rank {place.rank} is here", "")
        return fresh
    fresh = dist.PrefixStore(name, store)
    for rank in range(1, place.world_size):
        while not fresh.check([f"rank {rank} is here"]):
            store.set(f"the start of {store.get(f'rank {rank}').decode()}", name)
            time.sleep(POLL_SECONDS)
    return fresh


def _form_group(store: dist.Store, place: Launched, device: str) -> dist.ProcessGroup:
    """Form torch's process group, on one machine through its loopback interface; return a group for `gather`."""
    if place.nodes == 1:
        for backend in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    if device == "cuda":
        torch.cuda.set_device(place.local_rank)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=place.rank, world_size=place.world_size)
    try:  # connects the devices: what is wrong between them fails here
        dist.all_reduce(number := torch.zeros(1, device=device))
        number.item()
    except RuntimeError as error:
        reason = f"rank {place.rank} can't exchange a number with the others: {str(error).strip().splitlines()[-1]}"
        remedy = "On GPUs NCCL_DEBUG=INFO before the command shows more, and NCCL_P2P_DISABLE=1 may help"
        raise UserFault(f"{reason}. {remedy}") from error
    return dist.new_group(backend="gloo", timeout=NEVER)


def _end(error: BaseException, processes: Processes) -> NoReturn:
    """Exit at once, with the exit code of the rank that failed first, which alone prints the cause."""
    rank, signals = processes.rank, processes.signals
    signals.noted_only = signals.quiet = True
    received, (code, text) = signals.received, explain(error)
    if code == BUG or rank:
        time.sleep(GRACE_SECONDS)
        if signals.received != received:  # the launcher ends this rank: another one failed before
            os._exit(code)
    first = f"{rank} {code}"
    with contextlib.suppress(Exception):  # the store may be gone, with rank 0
        assert processes.store is not None
        first = processes.store.compare_set(FIRST_FAULT, "", first).decode()
    first_rank, code = map(int, first.split())
    if first_rank == rank:
        sys.stdout.flush()
        print(f"rank {rank}: {text}" if code == BUG else text, file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE_SECONDS)  # the launcher ends all when this rank ends
    os._exit(code)
