"""The parent of the ranks: it passes signals on, ends all when one fails, and gives the exit code and the cause."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from minigpt.config.schema import TrainerConfig
from minigpt.faults import BUG, INTERRUPTED, STOPPED, UserFault
from minigpt.invocation import LAUNCHED, PARENT, Launched, launched
from minigpt.ranks.group import joined
from minigpt.ranks.launch import check_world_size
from minigpt.ranks.signals import Signals
from tests.conftest import running

# Two ranks, without torch: each does what it is told, or waits for a signal and writes its name to a file.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from minigpt.config.schema import TrainerConfig
from minigpt.ranks.launch import start_ranks
from minigpt.ranks.signals import Signals
code = start_ranks(TrainerConfig(strategy="ddp", devices=2))
if code is not None:
    sys.exit(code)
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
with Signals() as signals:
    signals.noted_only, signals.quiet = True, rank > 0
    (folder / f"ready-{rank}").write_text(os.environ["WORLD_SIZE"])
    exec(sys.argv[2])
    while signals.received is None:
        time.sleep(0.01)
    (folder / f"received-{rank}").write_text(signal.Signals(signals.received).name)
    ends = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < ends:  # a signal just before one long sleep would be seen after it
        time.sleep(0.05)
    sys.exit(75)
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(act: str = "", wait: float = 0) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), act, str(wait)], stderr=subprocess.PIPE, text=True,
            start_new_session=True, env={name: text for name, text in os.environ.items() if name not in LAUNCHED},
        )  # fmt: skip
        started.append(process)
        while len(list(tmp_path.glob("ready-*"))) < 2 and process.poll() is None:
            time.sleep(0.01)
        return process

    yield begin
    for process in started:
        while running(process.pid):
            time.sleep(0.05)  # until pytest's time limit: all ranks end


def received(folder) -> list[str]:
    """The signals that both ranks have noted."""
    while len(paths := sorted(folder.glob("received-*"))) < 2 or not all(path.read_text() for path in paths):
        time.sleep(0.01)
    return [path.read_text() for path in paths]


@pytest.mark.parametrize(
    ("act", "code", "cause"),
    [
        ("if rank == 1: sys.exit(2)", 2, ""),  # it has printed the cause itself
        ("if rank == 1: os.kill(os.getpid(), 9)", BUG, "Error: rank 1 was killed (exit -9)"),
        ("sys.exit(75 if rank else 0)", STOPPED, ""),
    ],
)
def test_the_first_failure_ends_all(start, act, code, cause):
    process = start(act)
    assert process.wait() == code
    assert process.stderr.read().startswith(cause)


@pytest.mark.parametrize(("send", "number"), [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)])
def test_a_signal_reaches_each_rank_once(start, tmp_path, send, number):
    process = start(wait=0.3)
    send(process.pid, number)
    assert process.wait() == STOPPED
    assert received(tmp_path) == [number.name] * 2
    assert process.stderr.read().count(f"{number.name}: stopping after this step") == 1


def test_a_second_ctrl_c_ends_all_at_once(start, tmp_path):
    process = start(wait=600)
    os.killpg(process.pid, signal.SIGINT)
    assert received(tmp_path) == ["SIGINT"] * 2
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == INTERRUPTED
    assert process.stderr.read().count("Stopped at once.") == 1


def test_ranks_whose_parent_was_killed_stop_by_themselves(start, tmp_path):
    start().kill()
    assert received(tmp_path) == ["SIGTERM"] * 2


WAITING = "destroy = dist.destroy_process_group; dist.destroy_process_group = lambda: (dist.barrier(), destroy())"
FAILING = "if rank == 1: dist.all_reduce = lambda number: number.view(2)"


def begin_and_end_group(rank: int, folder: Path, change: str) -> None:
    """What a rank does, in a forked process: it joins the other one after a change to torch."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    os.environ |= {name: str(number) for name, number in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", PARENT: str(folder)}
    sys.stderr = open(folder / f"stderr-{rank}", "w")  # noqa: SIM115 (to the end of the process)
    exec(change, {"dist": dist, "rank": rank})
    with Signals() as signals, joined(TrainerConfig(strategy="ddp", devices=2), "cpu", signals):
        time.sleep(rank)


@pytest.mark.skipif(sys.platform != "linux", reason="forks with torch loaded")
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (WAITING, 0, "$"),
        (FAILING, 2, r"Error: rank 1 can't exchange a number with the others: .*. On GPUs NCCL_DEBUG=INFO"),
    ],
    ids=["destroying the group waits for the other rank, as NCCL's does", "the first collective fails"],
)
def test_a_group_begins_and_ends_with_all_its_ranks(tmp_path, change, code, said):
    context = multiprocessing.get_context("fork")  # torch is loaded here
    ranks = [context.Process(target=begin_and_end_group, args=(rank, tmp_path, change)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [code] * 2
    assert re.match(said, "".join((tmp_path / f"stderr-{rank}").read_text() for rank in range(2)))


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
SRUN = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


@pytest.fixture
def variables(monkeypatch):
    for name in (*TORCHRUN, *SRUN):
        monkeypatch.delenv(name, raising=False)

    def put(values, **changed):
        for name, value in {**values, **changed}.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize("values", [TORCHRUN, SRUN])
@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (2, 4), (1, 8)])
def test_launchers_are_understood(variables, values, nodes, devices):
    assert launched(TrainerConfig(strategy="fsdp", nodes=nodes, devices=devices)) is None
    variables(values)
    place = launched(TrainerConfig(strategy="fsdp", nodes=nodes, devices=devices))
    assert place == Launched(rank=5, world_size=8, local_rank=1, local_size=4)
    assert place.nodes == 2


@pytest.mark.parametrize(
    ("strategy", "devices", "changed"),
    [
        ("auto", 1, {}),  # one process: a task of a step that does something else, such as a sweep's worker
        ("ddp", 2, {}),  # so many it starts itself
        ("ddp", 1, {"SLURM_STEP_NUM_TASKS": ""}),  # a batch script, an allocation's shell
        ("ddp", 1, {"SLURM_PROCID": "x"}),
    ],
)
def test_what_slurm_says_to_others_is_ignored(variables, strategy, devices, changed):
    variables(SRUN, **changed)
    assert launched(TrainerConfig(strategy=strategy, devices=devices)) is None


@pytest.mark.parametrize(
    ("nodes", "devices", "words"),
    [
        (2, 2, "8 processes were started on 2 hosts, but trainer.nodes=2 trainer.devices=2"),
        (1, 8, "Add trainer=ddp trainer.nodes=2 trainer.devices=4"),
        (1, 1, "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT"),
    ],
)
def test_another_number_of_processes_is_refused(variables, nodes, devices, words):
    variables(TORCHRUN)
    with pytest.raises(UserFault, match=words):
        check_world_size(TrainerConfig(strategy="ddp", nodes=nodes, devices=devices))


def test_several_hosts_need_a_launcher(variables):
    with pytest.raises(UserFault, match="torchrun --nnodes=2 --nproc-per-node=4"):
        check_world_size(TrainerConfig(strategy="ddp", nodes=2, devices=4))
    check_world_size(TrainerConfig(strategy="ddp", devices=4))
