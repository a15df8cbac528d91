"""Trial W1: what goes wrong in a trial is its result; and what a person got wrong is said before the first."""

import contextlib
import errno
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.faults import TRIALS_FAILED, UserFault
from minigpt.sweep import locks
from minigpt.sweep import settings as plan_module
from minigpt.sweep import trial_runner as runner_module
from minigpt.sweep.process import TrainingProcess
from minigpt.sweep.trial_runner import cause_of
from minigpt.sweep.trial_store import FAILED

from .conftest import LAYERS, LR, wait_until

pytestmark = pytest.mark.timeout(400)  # a crowded machine is no failure


class JumpingClock:
    """The time, but for two hours that pass at the next two looks once somebody hangs."""

    def __init__(self, hangs: Path):
        self.hangs = hangs
        self.hours = 0

    def monotonic(self) -> float:
        self.hours += self.hangs.exists() and self.hours < 2
        return time.monotonic() + 3600 * self.hours


def test_w1_a_crash_a_kill_a_nan_and_a_hang_are_results(sweep, tmp_path, monkeypatch, capsys):
    eight = sweep(tmp_path / "one", LAYERS, "search.sampler=grid")
    monkeypatch.setattr(runner_module, "time", JumpingClock(eight.path / "trials" / "0006" / "hangs"))
    eight(code=TRIALS_FAILED)
    trials = eight.trials()
    assert [trial.params["model.n_layer"] for trial in trials] == list(range(1, 9))
    failed = {trial.params["model.n_layer"]: trial.user_attrs for trial in trials if trial.state == FAILED}
    assert sorted(failed) == [3, 5, 6, 7]
    assert failed[3]["cause"] == "crashed (exit 1): RuntimeError: the third layer is one too many"
    assert failed[5]["cause"].startswith("killed by SIGKILL, most likely by the system because memory ran out")
    assert failed[6]["cause"] == "training became non-finite (exit 5)"
    assert failed[6]["tail"] == ["Error: steps 5 to 6 were not fit to train on"]
    assert failed[7]["cause"] == "hung: no new row for 30 min"
    assert failed[7]["tail"] == ["waiting for ever"]
    table = eight.table()
    assert [row["state"] for row in table] == ["complete"] * 4 + ["failed"] * 4
    assert [row["rank"] for row in table] == ["1", "2", "3", "4", "", "", "", ""]
    said = capsys.readouterr().out
    assert "RuntimeError: the third layer is one too many" in said
    assert "8 of 8 trials, 4 failed" in said
    starts = eight.log().count
    assert all(starts(f"start {number:04d}") == 1 for number in range(8))


def test_a_hanging_training_is_gone_with_all_it_started(sweep, tmp_path, monkeypatch):
    one = sweep(tmp_path / "one", """search.space={"model.n_layer": {"choices": [7]}}""", "trials=1")
    monkeypatch.setattr(runner_module, "time", JumpingClock(one.path / "trials" / "0000" / "hangs"))
    one(code=TRIALS_FAILED)
    assert not [words for _, _, words in processes() if str(one.path) in words]


def test_too_many_failures_in_a_row_stop_the_sweep(sweep, tmp_path, capsys):
    sick = sweep(
        tmp_path / "one",
        """search.space={"model.n_layer": {"choices": [3]}, "optimizer.lr": {"low": 1e-4, "high": 1}}""",
    )
    sick("trials=20", code=TRIALS_FAILED)
    assert sick.states() == ["failed"] * 5
    said = capsys.readouterr().out
    assert "5 trials in a row failed, so no more are begun (sweep.max_failures=5)" in said
    assert "the third layer is one too many" in said
    sick("trials=20", "sweep.max_failures=2", code=TRIALS_FAILED)  # the same command goes on with the next ones
    assert len(sick.trials()) == 7


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (-9, [], "because memory ran out (exit -9)"),
        (-11, [], "ended by SIGSEGV (exit -11)"),
        (1, ["Traceback", "torch.OutOfMemoryError: CUDA out of memory. Tried"], "out of memory (exit 1)"),
        (1, ["RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"], "out of memory (exit 1)"),
        (1, [], "crashed (exit 1): it printed nothing"),
        (2, ["Error: no"], "wrong settings or data (exit 2)"),
        (4, [], "storage failure (exit 4)"),
        (5, [], "training became non-finite (exit 5)"),
    ],
)
def test_causes_in_words(code, said, words):
    assert cause_of(code, said).endswith(words)


def faults_of(sweep, *extra: str) -> list[str]:
    with pytest.raises(UserFault) as caught:
        sweep.plan(*extra)
    return list(caught.value.faults)


def test_everything_wrong_is_said_at_once_and_nothing_is_written(sweep, tmp_path):
    wrong = sweep(tmp_path / "one", "search=lrr", "trials=0", "optimiser.lr=1", "wrokers=2", "batch_tokens=0")
    faults = "\n".join(faults_of(wrong))
    for words in (
        "No search 'lrr'. Did you mean search=lr?",
        "trials must be at least 1",
        "Did you mean 'optimizer.lr'?",
        "No setting 'wrokers'. Did you mean 'workers'?",
        "batch_tokens must be at least 1",
    ):
        assert words in faults
    assert not wrong.path.exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["""search.space={"model.n_head": {"choices": [2, 3]}}"""], "At model.n_head=3: model.n_embd=128 is not"),
        (["""search.space={"model.n_head": {"low": 2, "high": 4}}"""], "At model.n_head=3: model.n_embd=128 is not"),
        (["""search.space={"schedule": {"choices": ["wsd", "cos"]}}"""], "At schedule=cos: No schedule 'cos'"),
        (["""search.space={"tokenizer": {"choices": ["byte"]}}"""], "Add sweep.metric=val/bits_per_byte"),
        (["""search.space={"data.source": {"choices": ["README.md"]}}"""], "differ in data.source are validated"),
        (["""search.space={"data.val_fraction": {"choices": [0.2]}}"""], "data.val_source=FILE for all"),
        (
            ["""search.space={"data.key": {"choices": ["body"]}}""", "data.val_source=README.md", "data=text"],
            "Trials that differ in data.key are validated on different texts",
        ),
        (["""search.space={"seed": {"choices": [1, 2]}}""", "seeds=2"], "the seed can't be both"),
        ([LR, "search.pruner=median", "validate.every_steps=0"], "validate.every_steps=0 makes none"),
        ([LR, "run.dir=here"], "sweep.dir=DIR names the sweep's"),
        ([LR, "sweep.storage=mine.db"], "is not the URL of a database"),
        (["search.space=3"], "search.space must be a JSON object"),
        ([], "Nothing is searched"),
    ],
)  # fmt: skip
def test_faults_of_a_search(sweep, tmp_path, settings, words):
    (fault,) = faults_of(sweep(tmp_path / "one", *settings))
    assert words in fault


def test_sources_of_the_training_text_are_searched_beside_one_validation_text(sweep, tmp_path):
    for name in "abv":
        (tmp_path / name).write_text("some text")
    space = f"""search.space={{"data.source": {{"choices": ["{tmp_path / "a"}", "{tmp_path / "b"}"]}}}}"""
    words = [space, "data=text", f"data.source={tmp_path / 'a'}", f"data.val_source={tmp_path / 'v'}"]
    assert list(sweep(tmp_path / "one", *words).plan().space) == ["data.source"]


def test_the_command_line_is_read_without_torch():
    code = "import sys, minigpt.sweep.settings, minigpt.sweep.grid; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_optuna_the_command_that_brings_it(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module.importlib.util, "find_spec", lambda name: None)
    (fault,) = faults_of(sweep(tmp_path / "one", LR))
    assert f"{sys.executable} -m pip install 'optuna" in fault


def test_a_database_that_is_not_there_is_named(sweep, tmp_path):
    lost = sweep(tmp_path / "one", LR, f"sweep.storage=sqlite:///{tmp_path}/no/such/folder.db")
    with pytest.raises(UserFault, match=r"sweep.storage=sqlite:.* can't be opened"):
        lost()
    away = sweep(tmp_path / "two", LR, "sweep.storage=postgresql://me:secret-word@127.0.0.1:1/none")
    with pytest.raises(UserFault, match=r"pip install psycopg2-binary|can't be opened") as caught:
        away()
    assert "secret-word" not in str(caught.value)


def test_a_directory_of_another_sweep_is_refused(sweep, tmp_path):
    one = sweep(tmp_path / "one", LR, "trials=1")
    one()
    one("trials=2", "workers=2", "checkpoint.every_steps=7")  # these may change
    with pytest.raises(UserFault, match=r"optimizer\.beta1: 0\.9 -> 0\.8"):
        one("optimizer.beta1=0.8")
    with pytest.raises(UserFault, match=r"search\.sampler"):
        one("search.sampler=random")


def test_a_signal_stops_each_trial_with_a_checkpoint_and_the_same_command_goes_on(sweep, tmp_path):

    long = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=3", "workers=2")
    long.hold.touch()
    process = long.start()
    runs = [long.path / "trials" / name / "metrics.jsonl" for name in ("0000", "0001")]
    wait_until(lambda: all(run.exists() and run.read_text() for run in runs), process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 75, said
    assert "Stopped, each trial with a checkpoint. The same command continues the sweep." in said
    assert said.count("stopped, goes on with the sweep") == 2
    assert long.states() == ["running"] * 2
    long.hold.unlink()
    assert all((run.parent / "checkpoint.json").exists() for run in runs)
    assert {line for line in long.log() if line.startswith("stop")} == {"stop 0000", "stop 0001"}
    long()
    straight = sweep(tmp_path / "two", LR, "search.sampler=random", "trials=3")()
    assert long.table() == straight.table()
    with contextlib.suppress(FileNotFoundError):
        assert not (long.path / "trials" / "0000" / "STOP").exists()


def processes() -> list[tuple[int, int, str]]:
    """Number, parent and command line of all processes."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [(int(number), int(parent), words) for number, parent, words in rows]


def test_a_slot_is_free_only_when_the_process_that_trains_is_gone(sweep, tmp_path):
    """Finding 30: a process stood between the sweep and the training, which lived on when only that was killed."""
    one = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2")
    one.hold.touch()
    process = one.start()
    metrics = one.path / "trials" / "0000" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") == 4, process)
    ((child, words),) = [(number, words) for number, parent, words in processes() if parent == process.pid]
    assert "stub_train.py" in words
    assert "trials/0000" in words
    os.kill(child, signal.SIGKILL)
    one.hold.unlink()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == TRIALS_FAILED, said
    assert one.log() == ["start 0000", "start 0001", "end 0001"]
    assert not [words for _, _, words in processes() if str(one.path) in words]


def test_a_training_that_ignores_its_parents_end_is_killed(tmp_path):
    code = """
import signal, time
from minigpt import children
signal.signal(signal.SIGTERM, signal.SIG_IGN)
children.CHECKPOINT_SECONDS = 0.2
children.watch_lifeline()
print("ready", flush=True)
time.sleep(600)
"""
    training = TrainingProcess([sys.executable, "-c", code], tmp_path / "output.txt")
    wait_until(lambda: training.last_lines() == ["ready"])
    assert training.poll() is None
    began = time.monotonic()
    training.process.stdin.close()  # as the system does it when we are killed
    wait_until(lambda: training.poll() is not None)
    assert training.poll() == -signal.SIGKILL
    assert time.monotonic() - began > 0.2


def test_what_a_training_started_ends_with_it(tmp_path):
    code = """
import os, subprocess
subprocess.Popen(["sleep", "6123"])
print("ready", flush=True)
"""
    training = TrainingProcess([sys.executable, "-c", code], tmp_path / "output.txt")
    wait_until(lambda: training.poll() is not None)
    assert training.poll() == 0
    wait_until(lambda: not [words for _, _, words in processes() if words == "sleep 6123"])


def test_a_file_system_without_locks_runs_a_sweep_with_a_sentence(sweep, tmp_path, monkeypatch, capsys):
    """Finding 8."""

    def flock(file: object, flags: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    one = sweep(tmp_path / "one", LR, "search.sampler=random", "trials=2", "workers=2")()
    assert one.states() == ["complete"] * 2
    assert "no file locks here. Run one command at a time" in capsys.readouterr().out
    path = tmp_path / "lock"
    path.write_text(f"{platform.node()} {os.getppid()}")  # another process of this machine, which lives
    assert locks.claim(path) is None
    path.write_text(f"{platform.node()} {2**22 - 1}")
    assert locks.claim(path) is not None
    monkeypatch.setattr(locks.fcntl, "flock", lambda file, flags: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), locks.exclusive(path):
        pass
