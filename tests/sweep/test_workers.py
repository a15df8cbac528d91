"""Several workers: slots of one machine, other machines, a database, an array of SLURM."""

import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from minigpt.config.schema import TrainConfig, TrainerConfig
from minigpt.invocation import command_line
from minigpt.sweep import driver, locks, process
from minigpt.sweep.locks import claim, owner
from minigpt.sweep.process import Slot, make_slots
from minigpt.sweep.trial_store import TrialStore

from .conftest import HERE, LR, made_trial, wait_until

pytestmark = pytest.mark.timeout(400)  # a crowded machine is no failure


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_who_runs_the_same_command_joins(sweep, tmp_path, storage):
    url = [f"sweep.storage=sqlite:///{tmp_path}/all.db"] if storage == "sqlite" else []
    shared = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=6", *url)
    processes = [shared.start(STUB_STEP_SECONDS="0.02") for _ in range(2)]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert shared.states() == ["complete"] * 6
    counts = Counter(line for line in shared.log() if line.startswith("start"))
    assert counts == {f"start {number:04d}": 1 for number in range(6)}
    alone = sweep(tmp_path / "two", LR, "search.sampler=random", "trials=6")()
    assert shared.table() == alone.table()
    assert (shared.path / "journal.jsonl").exists() == (storage == "journal")


def test_a_trial_is_claimed_once_and_left_by_the_dead(tmp_path):
    path = tmp_path / "locks" / "0000"
    mine = claim(path)
    assert mine is not None
    assert claim(path) is None
    assert owner(path) == (platform.node(), os.getpid())
    mine.release()
    again = claim(path)
    assert again is not None
    again.release()
    path.write_text(f"{platform.node()} 1")  # killed here: the lock is free, so it is gone
    assert claim(path) is not None


def test_another_machine_keeps_its_trial_while_it_is_heard_of(tmp_path):
    """Where locks don't reach other machines, the time of the last sign of life decides."""
    path = tmp_path / "locks" / "0000"
    path.parent.mkdir()
    path.write_text("elsewhere 17")
    assert claim(path) is None
    long_ago = path.stat().st_mtime - locks.STALE_SECONDS - 1
    os.utime(path, (long_ago, long_ago))
    taken = claim(path)
    assert taken is not None
    taken.beaten -= locks.BEAT_SECONDS + 1
    os.utime(path, (long_ago, long_ago))
    taken.beat()
    assert path.stat().st_mtime > long_ago + 60


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """The seconds that a sweep waits between its looks."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return waits


def test_the_trial_of_a_machine_that_went_down_is_taken_over(sweep, tmp_path, monkeypatch, slept):
    """Whoever has nothing else to do waits until it is sure that nobody runs the trial."""
    two = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2")
    plan = two.plan()
    (plan.folder / "trials").mkdir(parents=True)
    TrialStore(plan.folder, plan.name, plan.space).begin({"optimizer.lr": 0.01})
    plan.lock_of(0).parent.mkdir()
    plan.lock_of(0).write_text("elsewhere 17")
    real = driver.Driver.publish

    def publish(self, runner):
        """When trial 1 is over, nothing has been heard of that machine for long."""
        real(self, runner)
        if runner.trial.number == 1:
            os.utime(plan.lock_of(0), (0, 0))

    monkeypatch.setattr(driver.Driver, "publish", publish)
    two()
    assert two.states() == ["complete"] * 2
    assert two.log() == ["start 0001", "end 0001", "start 0000", "end 0000"]
    assert 10 * driver.POLL_SECONDS in slept


def test_who_has_nothing_left_to_begin_waits_for_the_others_results(sweep, tmp_path):
    """Exit code 0 says that all trials have one."""
    one = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=1")
    one.hold.touch()
    first = one.start()
    wait_until(lambda: "start 0000" in one.log(), first)
    second = one.start()
    read, line = [], ""
    while "waiting for 1 trial" not in line:
        read.append(line := second.stdout.readline())
        assert line, read
    assert second.poll() is None
    one.hold.unlink()
    said = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert one.states() == ["complete"]
    assert one.log() == ["start 0000", "end 0000"]


def test_the_next_trial_begins_at_the_next_look(sweep, tmp_path, slept):
    """Only who waits for the results of others looks less often."""
    sweep(tmp_path / "one", LR, "search.sampler=random", "trials=3")()
    assert set(slept) == {driver.POLL_SECONDS}


def config(devices: int = 1, device: str = "auto") -> TrainConfig:
    return TrainConfig(trainer=TrainerConfig(devices=devices, device=device, strategy="ddp"))


def test_slots_share_the_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    assert [slot.gpus for slot in make_slots(2, config().trainer)] == [("3",), ("5",)]
    assert [slot.gpus for slot in make_slots(2, config(devices=2).trainer)] == [("3", "5"), ("6", "7")]
    assert make_slots(1, config().trainer)[0].environment == {"CUDA_VISIBLE_DEVICES": "3"}
    assert [slot.gpus for slot in make_slots(2, config(device="cpu").trainer)] == [(), ()]


def test_workers_that_share_a_gpu_are_told_so(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    two = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=1", "trainer.device=auto")
    two("workers=2")
    assert "share a GPU" not in capsys.readouterr().out
    two("workers=3")
    assert "several workers share a GPU" in capsys.readouterr().out


def test_slots_share_the_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(process, "usable_cores", lambda: 8)
    assert [slot.threads for slot in make_slots(2, config().trainer)] == [4, 4]
    assert make_slots(2, config(devices=2).trainer)[0].threads == 2
    assert make_slots(1, config().trainer)[0].environment == {}


def test_each_trial_gets_its_slots_threads(sweep, tmp_path):
    plan = sweep(tmp_path / "one", LR).plan("workers=2")
    trial = made_trial(3, {"optimizer.lr": 0.5})
    command = plan.command(trial, 0, Slot((), 3))
    assert command[-3:] == ["optimizer.lr=0.5", f"run.dir={plan.folder}/trials/0003", "trainer.threads=3"]
    chosen = sweep(tmp_path / "one", LR).plan("trainer.threads=7")
    assert chosen.command(trial, 0, Slot((), 3))[-1].startswith("run.dir=")


def test_the_slurm_script_is_a_worker_that_passes_signals_on(sweep, tmp_path):
    job = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2")
    job.hold.touch()
    process = job.start()
    script = job.path / "sweep.sbatch"
    wait_until(script.exists, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
    text = script.read_text()
    assert "#SBATCH --array=0-1\n" in text
    assert "#SBATCH --signal=B:USR1@120\n" in text
    assert "--gpus" not in text  # trainer.device=cpu
    body = text.replace(shlex.join(command_line("sweep")), f"{sys.executable} {HERE / 'sweep_with_stub.py'}")
    assert body != text
    (tmp_path / "job.sh").write_text(body)
    began = len(job.log())
    worker = subprocess.Popen(
        ["bash", str(tmp_path / "job.sh")],
        env={**os.environ, "STUB_HOLD": str(job.hold)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: len(job.log()) > began, worker)
    worker.send_signal(signal.SIGUSR1)
    said, _ = worker.communicate(timeout=200)
    assert worker.returncode == 75, said
    assert "The same command continues the sweep" in said
    assert sys.executable in text
