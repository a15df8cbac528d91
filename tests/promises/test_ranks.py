"""Several devices compute what one does, and a signal stops all of them after the same step."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt import cli
from minigpt.checkpoint.folder import list_checkpoints, step_of
from minigpt.faults import STOPPED
from minigpt.invocation import PARENT
from minigpt.ranks.signals import CTRL_C
from minigpt.rundir.rows import TIMINGS
from tests.conftest import running

MINIGPT = [sys.executable, "-m", "minigpt"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "minigpt"]
PAIR = ["trainer.devices=2", "trainer.micro_batch=2"]  # 2 ranks x 2 micro-batches x 2 windows
EXACT = ["trainer.precision=fp64", "trainer.max_steps=12", "checkpoint.every_steps=3", "logger.every_steps=1"]
EXACT += ["schedule=constant", "schedule.warmup_steps=1"]  # its length changes nothing
SHARDED = ["model.n_layer=2", "model.n_embd=18"]  # rows that two ranks can't share evenly


class Trial:
    """A command in the background, in a session of its own, and what it prints."""

    def __init__(self, run, words: list[str], *settings: str, **environment: str):
        self.log = run.folder / f"log-{len(list(run.folder.glob('log-*')))}"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*words, "train", *run.arguments(*EXACT, *PAIR), *settings],
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"} | environment,
                start_new_session=True,
            )  # fmt: skip

    def until(self, run, step: int) -> "Trial":
        """Wait until a step's row is written."""
        while not run.path.joinpath("metrics.jsonl").exists() or len(run.rows()) < step:
            assert self.process.poll() is None, self.said
            time.sleep(0.01)
        return self

    def ranks(self) -> list[int]:
        """The processes that the command has started, oldest first."""
        return list(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))

    def end(self) -> int:
        """The exit code. Nothing of its session is left."""
        code = self.process.wait()
        assert running(self.process.pid) == [], self.said
        return code

    @property
    def said(self) -> str:
        return self.log.read_text()


def whole(run, *settings: str) -> list[dict]:
    """The rows of one process that is not disturbed."""
    path, run.path = run.path, run.folder / "whole"
    run(*EXACT, *settings)
    rows, run.path = run.rows(), path
    return rows


def assert_close(rows: list[dict], others: list[dict]) -> None:
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    for row, other in zip(rows, others, strict=True):
        layers = {key for key in row if key.startswith(("train/grad_norm/", "train/update/"))}
        for key in row.keys() - set(TIMINGS) - (layers - other.keys()):  # of sharded weights no layer is measured
            assert row[key] == pytest.approx(other[key], abs=1e-10, rel=0), (row["step"], key)


SLOW = ["validate.every_steps=1", "trainer.max_steps=2000"]  # so that a signal finds it at work
proc = pytest.mark.skipif(sys.platform != "linux", reason="forks with torch loaded, looks into /proc")


def be_rank(rank: int, run) -> None:
    """Train as the plain command has its ranks do it, in a process that is forked: torch is loaded already."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    os.environ |= {name: str(number) for name, number in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", PARENT: str(run.folder)}
    sys.stdout = sys.stderr = open(run.folder / f"log-{rank}", "w", buffering=1)  # noqa: SIM115 (to its end)
    for descriptor in (1, 2):
        os.dup2(sys.stdout.fileno(), descriptor)
    sys.argv = ["minigpt", "train", *run.arguments(*EXACT, *PAIR, "trainer=ddp", *SLOW)]
    cli.main()


@proc
def test_ctrl_c_stops_both_ranks_after_a_step_and_one_process_continues(run):
    ranks = [multiprocessing.get_context("fork").Process(target=be_rank, args=(rank, run)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    while not run.path.joinpath("metrics.jsonl").exists() or len(run.rows()) < 5:
        assert all(rank.is_alive() for rank in ranks), (run.folder / "log-0").read_text()
        time.sleep(0.01)
    for rank in ranks:
        os.kill(rank.pid, CTRL_C)  # as their parent passes it on
    for rank in ranks:
        rank.join()
    said = "".join((run.folder / f"log-{rank}").read_text() for rank in range(2))
    assert [rank.exitcode for rank in ranks] == [STOPPED] * 2, said
    assert said.count("SIGINT: stopping after this step") == 1
    assert said.count("Stopped after step") == 1
    last = step_of(list_checkpoints(run.path / "checkpoints")[-1])
    assert last == run.rows()[-1]["step"]
    steps = ["validate.every_steps=1", f"trainer.max_steps={last + 3}"]
    run(*EXACT, *steps)
    (changed,) = [event for event in run.events() if event["event"] == "choices_changed"]
    assert (changed["was"]["devices"], changed["now"]["devices"]) == (2, 1)
    assert_close(whole(run, *steps), run.rows())


@pytest.mark.soak
@proc
@pytest.mark.parametrize("words", [MINIGPT, TORCHRUN], ids=["plain", "torchrun"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_stops_both_and_two_continue(run, words, strategy):
    settings = [f"trainer={strategy}", *SHARDED]
    trial = Trial(run, words, *settings, *SLOW).until(run, 5)
    os.kill(trial.ranks()[1], signal.SIGTERM)
    assert trial.end() == (STOPPED if words is MINIGPT else 1), trial.said
    assert trial.said.count("Stopped after step") == 1
    steps = ["validate.every_steps=1", f"trainer.max_steps={run.rows()[-1]['step'] + 3}"]
    assert Trial(run, words, *settings, *steps).end() == 0
    assert_close(whole(run, *SHARDED, *steps), run.rows())


@pytest.mark.soak
@proc
def test_torchrun_starts_both_ranks_again_when_one_is_killed(run):
    words = [*TORCHRUN[:3], "--max-restarts", "1", *TORCHRUN[3:]]
    trial = Trial(run, words, "trainer=ddp", "trainer.max_steps=60", "validate.every_steps=1").until(run, 8)
    os.kill(trial.ranks()[0], signal.SIGKILL)
    assert trial.end() == 0, trial.said
    assert [event["event"] for event in run.events() if event["event"] != "saved"] == ["began", "continued", "finished"]
    assert_close(whole(run, "trainer.max_steps=60", "validate.every_steps=1"), run.rows())


@pytest.mark.soak
@proc
def test_two_hosts_train_together_and_end_together(run):
    """Two torchruns, each with one rank, that know each other's address alone."""
    master = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", "29617"]
    hosts = [[*TORCHRUN[:3], *master, "--node-rank", str(node), "-m", "minigpt"] for node in (0, 1)]
    settings = ["trainer=fsdp", "trainer.nodes=2", "trainer.devices=1", *SHARDED]
    trials = [Trial(run, words, *settings) for words in hosts]
    assert [trial.end() for trial in trials] == [0, 0], trials[0].said
    assert_close(whole(run, *SHARDED), run.rows())
    run.path = run.folder / "killed"
    trials = [Trial(run, words, *settings, *SLOW) for words in hosts]
    trials[0].until(run, 3)
    os.kill(trials[1].ranks()[0], signal.SIGKILL)
    assert [trial.end() for trial in trials] == [1, 1], trials[0].said


@pytest.mark.soak
@proc
def test_ranks_that_were_started_with_other_settings_are_named(run):
    script = run.folder / "train.py"
    script.write_text("import os, sys\nfrom minigpt.cli import main\n"
                      "sys.argv += ['optimizer.lr=0.5'] if os.environ['RANK'] == '1' else []\nmain()\n")  # fmt: skip
    trial = Trial(run, [*TORCHRUN[:5], str(script)], "trainer=ddp")
    assert trial.end() == 1
    assert trial.said.count("rank 1 has a config other than rank 0: optimizer.lr: 0.5 where rank 0 has") == 1
    assert not run.path.exists()
