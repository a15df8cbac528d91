"""The processes of one run: start them, or join those that torchrun started, and let them work together.

Several devices mean one process each. The plain command is rank 0 and starts the others as Lightning's launcher
does, by running the same command again with RANK set; we start them ourselves, because Lightning's own launcher can
end them by SIGKILL only. Under torchrun all of them run already. Either way one process group is formed before
anything is read or written, and Lightning uses it.

The processes meet in a folder that only this user may enter: their messages go through a Unix socket there, and the
addresses that the backend needs through a file there. So no port is opened that another user could connect to.
"""

import contextlib
import hashlib
import itertools
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minigpt import __version__
from minigpt.config.schema import TrainerConfig
from minigpt.faults import BUG, LAUNCHED, UserFault, explain, launched_rank
from minigpt.launcher import Launched, launched
from minigpt.ranks.heartbeat import START_SECONDS, Heartbeat
from minigpt.ranks.hosts import MEETING, interface_of, several_hosts
from minigpt.ranks.signals import Signals

NEVER = timedelta(days=365)  # a collective waits as long as it must; the heartbeat knows who is alive
FOLDER = "MINIGPT_GROUP_FOLDER"  # environment variable: where the processes that rank 0 starts find it
SAME_COMMAND = "Start all processes of a run with one command, on the same files"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them: its rank, their number, and what they do together."""

    rank: int = 0
    world_size: int = 1
    signals: Signals = field(default_factory=Signals)
    store: dist.Store | None = None  # key-value store: each process writes, all read
    calls: Iterator[int] = field(default_factory=itertools.count)
    ask_to_stop: Callable[[int], None] = lambda number: None  # sends a signal's number to rank 0, which ends all

    def wait(self) -> None:
        """Return when all ranks have called this."""
        self.gather("")

    def gather(self, text: str) -> list[str]:
        """Return the texts that all ranks pass, in the order of ranks. Waits for all."""
        if self.store is None:
            return [text]
        call = next(self.calls)
        self.store.set(f"{call} of rank {self.rank}", text)
        return [self.store.get(f"{call} of rank {rank}").decode() for rank in range(self.world_size)]

    def for_thread(self, name: str) -> "Processes":
        """Return the same processes for another thread, so that `gather` there is independent. All ranks call it."""
        store: Any = self.store
        store = store and dist.PrefixStore(f"{name} {next(self.calls)}", store.clone())  # new keys for every call
        return replace(self, store=store, calls=itertools.count())

    def require_equal_on_all_ranks(self, what: str, mine: Mapping[str, object], *, remedy: str = SAME_COMMAND) -> None:
        """Make sure that all ranks have the same `mine`. Waits for all.

        Raises:
            UserFault: they differ; it names the first rank and the keys. Raised on every rank.
        """
        said = [line.splitlines() for line in self.gather("\n".join(f"{key}: {mine[key]!r}" for key in sorted(mine)))]
        for rank, lines in enumerate(said):
            if lines != said[0]:
                theirs, ours = (sorted(set(one) - set(other)) for one, other in ((lines, said[0]), (said[0], lines)))
                both = f"{'; '.join(theirs)} where rank 0 has {'; '.join(ours)}"
                raise UserFault(f"rank {rank} has {what} other than rank 0: {both}. {remedy}")

    @contextlib.contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Let rank 0 do a block alone, then all others."""
        if self.rank:
            self.wait()
        yield
        if not self.rank:
            self.wait()


@contextlib.contextmanager
def joined(trainer: TrainerConfig, device: str, signals: Signals, run_dir: Path = Path()) -> Iterator[Processes]:
    """Form the group of the run's processes for a `with` block. An exception in one ends all, and is printed once.

    Args:
        trainer: hosts, devices and strategy.
        device: "cuda" or "cpu" (mps is never more than one device).
        signals: a second Ctrl-C in any process ends all.
        run_dir: where the processes of several hosts meet.

    Raises:
        UserFault: the processes that were started are not those that the config asks for.
    """
    found = launched(trainer.strategy, trainer.nodes, trainer.devices)
    world_size = trainer.nodes * trainer.devices
    refuse_misfit(found, trainer)
    if world_size == 1:
        yield Processes(signals=signals)
        return
    started = found is not None and found.world_size > 1
    rank, local_rank = (found.rank, found.local_rank) if found and started else (0, 0)
    if found is None or trainer.nodes == 1:
        heartbeat = Heartbeat(rank, world_size, _meeting_folder(started))
    else:
        heartbeat = Heartbeat(rank, world_size, run_dir / f"{MEETING}none", several_hosts(found, run_dir))
    signals.quiet = rank > 0
    signals.before_exit = heartbeat.fail
    heartbeat.on_stop = signals.take
    try:
        # A process that rank 0 has started finds it, or knows that it was killed; a launcher starts ranks in any order.
        file = heartbeat.meet(patience=0 if FOLDER in os.environ else START_SECONDS)
        if not started:
            _start_others(heartbeat)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere if rank else sys.stdout):
            processes = Processes(
                rank, world_size, signals, _store(file, world_size), ask_to_stop=heartbeat.ask_to_stop
            )
            if heartbeat.hosts is not None:
                versions = {"minigpt": __version__, "torch": str(torch.__version__)}
                processes.require_equal_on_all_ranks("versions", versions)
            _form_group(processes, device, local_rank, heartbeat)
            yield processes
    except BaseException as error:
        signals.noted_only = True  # no signal may interrupt the end
        code, text = explain(error)
        heartbeat.fail(code, f"rank {rank}: {text}" if rank and code == BUG else text)
    heartbeat.leave()
    dist.destroy_process_group()


def refuse_misfit(found: Launched | None, trainer: TrainerConfig) -> None:
    """Refuse to train if the processes are not those that the config asks for.

    Raises:
        UserFault: a launcher has started others, or there are several hosts and no launcher.
    """
    started, asked = 1 if found is None else found.world_size, trainer.nodes * trainer.devices
    if trainer.nodes > 1 and started == 1:
        remedy = f"torchrun --nnodes={trainer.nodes} --nproc-per-node={trainer.devices} ... on each host, or srun"
        raise UserFault(f"trainer.nodes={trainer.nodes}: processes of several hosts need a launcher. Type {remedy}")
    if found is not None and (started not in (1, asked) or (started > 1 and found.nodes != trainer.nodes)):
        on = f" on {found.nodes} hosts" if found.nodes > 1 else ""
        wanted = f"trainer.nodes={trainer.nodes} trainer.devices={trainer.devices}"
        wrong = f"{started} processes were started{on}, but {wanted if on or trainer.nodes > 1 else wanted.split()[1]}"
        right = f"trainer.nodes={found.nodes} " if on else ""
        right += f"trainer.devices={found.local_size}"
        remedy = f"Add trainer=ddp {right}{'' if on else ' (one machine)'}, or start one process only"
        other = f"If no launcher did, its variables are left over from another job: unset {' '.join(LAUNCHED)}"
        raise UserFault(f"{wrong}. {remedy}. {other}")


def _meeting_folder(launched: bool) -> Path:
    """Return a folder that all processes of the run find, and that only this user may enter.

    Raises:
        UserFault: the folder belongs to another user, or others may enter it.
    """
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"  # a socket's path has 104 bytes
    if not launched:
        return Path(tempfile.mkdtemp(prefix="minigpt-", dir=place))
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    # Processes of one torchrun have the same parent, also those that it starts again after a failure. Processes of srun
    # belong to one step, in which a shell may start several runs, and each may have a script of its own as parent.
    ids = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    step = [os.environ.get(name, "") for name in ids]
    by_srun = "TORCHELASTIC_RUN_ID" not in os.environ and all(step[:2])
    facts = (os.getuid(), *(step if by_srun else (os.getppid(), os.environ.get("TORCHELASTIC_RESTART_COUNT"))))
    name = f"minigpt-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"
    folder = Path(place) / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserFault(f"{folder} is not a folder of yours alone. Set TMPDIR to a folder that only you may write to")
    return folder


def _start_others(heartbeat: Heartbeat) -> None:
    """Start this command again as ranks 1, 2 ..."""
    size = {name: str(heartbeat.world_size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GROUP_RANK": "0", FOLDER: str(heartbeat.folder)} | size
    for rank in range(1, heartbeat.world_size):
        names = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, *sys.orig_argv[1:]]
        heartbeat.children[rank] = subprocess.Popen(command, env=os.environ | place | names)


def _store(file: Path, world_size: int) -> dist.Store:
    """Return the store that all processes read and write; between hosts it needs a file system with locks."""
    store = dist.FileStore(str(file), world_size)
    store.set_timeout(NEVER)
    return store


def _form_group(processes: Processes, device: str, local_rank: int, heartbeat: Heartbeat) -> None:
    """Form torch's process group, whose own connections stay on this machine, or on the interface between hosts."""
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    interface: str | None = LOOPBACK
    if heartbeat.hosts is not None:
        addresses = processes.gather(heartbeat.own_address())  # rank 0's host may have another address for itself
        interface = interface_of(addresses[0 if heartbeat.hosts.node == 0 else processes.rank])
    for backend in ("GLOO", "NCCL"):
        if interface is not None:
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", interface)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=processes.store, rank=processes.rank, world_size=processes.world_size, timeout=NEVER
    )


STOP_MARK = ".stopped"


def _torchrun() -> str:
    """Return what identifies this process's torchrun, the same when it starts processes again; "" without one."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    hosts = os.environ.get("GROUP_WORLD_SIZE", "1")
    return f"{run} {os.getppid() if hosts == '1' else os.environ.get('MASTER_ADDR')} " if run else ""


def mark_stopped(run_dir: Path) -> None:
    """Write down that this torchrun was asked to stop, for the processes that it will start again nevertheless."""
    if _torchrun() and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        with contextlib.suppress(OSError):
            (run_dir / STOP_MARK).write_text(f"{_torchrun()}{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n")


def was_asked_to_stop(run_dir: Path) -> bool:
    """Return whether the torchrun that started this process again was asked to stop (and print it); else forget it."""
    mark = run_dir / STOP_MARK
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if _torchrun() and restarted and mark.is_file() and mark.read_text().startswith(_torchrun()):
        if not launched_rank():
            print("This run was asked to stop. torchrun began it again all the same; a new torchrun continues it.")
        return True
    with contextlib.suppress(OSError):
        mark.unlink()
    return False
