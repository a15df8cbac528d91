"""A sweep survives: a trial that fails is a result and can be tried again, and a killed sweep continues."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt import cli
from minigpt.cli import _dispatch
from minigpt.faults import NON_FINITE, STOPPED, TRIALS_FAILED, UserFault
from minigpt.report.runs import list_runs
from minigpt.sweep import results, search
from minigpt.sweep.search import run_sweep
from minigpt.sweep.settings import Sweep, read_sweep
from minigpt.sweep.trial import cause_of
from tests.conftest import TINY

HERE = Path(__file__).parent
STUB = [sys.executable, "-I", "-S", str(HERE / "stub_train.py")]
LR = """search.space={"optimizer.lr": {"low": 1e-5, "high": 1, "log": true}}"""
LAYERS = """search.space={"model.n_layer": {"low": 1, "high": 6}}"""
SHARED = [
    "data=text", "tokenizer=byte", "model.block_size=10", "batch_tokens=100", "trainer.max_steps=12",
    "validate.every_steps=2", "trainer.device=cpu", "schedule.warmup_steps=1",
]  # fmt: skip


class StubSweep:
    """A sweep of a stub trainer in a folder; the same folder again continues it."""

    def __init__(self, folder: Path, *settings: str):
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "text.txt").write_text("how much wood would a woodchuck chuck if " * 30)
        self.path = folder / "sweep"
        self.hold = folder / "hold"  # while it is there, trainings of started sweeps, or that it names, wait at step 4
        where = [f"data.source={folder.parent / 'text.txt'}", f"data.dir={folder.parent / 'data'}"]
        self.arguments = [*SHARED, *where, f"sweep.dir={self.path}", *settings]

    def plan(self, *extra: str) -> Sweep:
        return read_sweep([*self.arguments, *extra], STUB)

    def __call__(self, *extra: str, code: int = 0) -> "StubSweep":
        assert run_sweep(self.plan(*extra)) == code
        return self

    def start(self, *extra: str, **variables: str) -> subprocess.Popen:
        """A process of its own."""
        command = [sys.executable, str(HERE / "sweep_with_stub.py"), *self.arguments, *extra]
        variables = {**os.environ, "STUB_HOLD": str(self.hold), **variables}
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def log(self) -> list[str]:
        """What the stubs have noted: start, stop and end of each training."""
        file = self.path / "trials" / "log.txt"
        return file.read_text().splitlines() if file.exists() else []

    def table(self) -> list[dict[str, str]]:
        """leaderboard.csv, with the names of the folders."""
        with open(self.path / "leaderboard.csv", newline="") as file:
            return [{**row, "run.dir": Path(row["run.dir"]).name} for row in csv.DictReader(file)]

    def states(self) -> list[str]:
        return [row["state"] for row in self.table()]


def wait_until(true, process: subprocess.Popen) -> None:
    while not true():
        assert process.poll() is None or true(), process.stdout.read()
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The stub's trials are over in a moment."""
    monkeypatch.setattr(search, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(results, "draw_picture", lambda sweep, study: None)


def test_a_whole_sweep_ends_with_a_leaderboard_and_the_command_that_trains_the_best_again(tmp_path, capsys):
    one = StubSweep(tmp_path / "one", LR, "trials=8", "search.startup_trials=4", "workers=2")()
    rows = one.table()
    assert list(rows[0]) == ["rank", "value", "state", "optimizer.lr", "run.dir"]
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, 9)]
    values = [float(row["value"]) for row in rows]
    assert values == sorted(values)
    printed = capsys.readouterr().out
    assert "8 of 8 trials" in printed
    assert printed.count("| WARNING    the learning rate rises\n") == 1
    command = printed.split("Train the best again:\n  ")[1].splitlines()[0]
    assert re.fullmatch(rf".*train data=text .*optimizer\.lr={rows[0]['optimizer.lr']}", command)
    best = f"Best       optimizer.lr={rows[0]['optimizer.lr']}: val/loss {values[0]:.4f}"
    assert f"{best}; the next settings have" in printed
    assert re.search(rf"compare \S+/{rows[0]['run.dir']} \S+/{rows[1]['run.dir']}\n", printed)
    assert list_runs(str(one.path)) == list_runs(str(one.path / "trials"))
    one()
    assert len(one.log()) == 16  # nothing was trained again
    one("trials=9")
    assert one.states() == ["complete"] * 9


def test_a_crash_a_kill_and_a_nan_are_results_and_all_but_nan_can_be_tried_again(tmp_path, capsys, monkeypatch):
    six = StubSweep(tmp_path / "one", LAYERS, "search.sampler=grid")(code=TRIALS_FAILED)
    assert six.states() == ["complete"] * 3 + ["failed"] * 3
    printed = capsys.readouterr().out
    assert "trial 2: FAILED crashed (exit 1): RuntimeError: the third layer is one too many  model.n_layer=3" in printed
    assert "killed by SIGKILL, most likely by the system because memory ran out" in printed
    assert "training became non-finite (exit 5)" in printed
    assert "    | Error: steps 5 to 6 were not fit to train on" in printed
    assert "6 of 6 trials, 3 failed" in printed
    monkeypatch.setenv("STUB_HEALTHY", "1")  # the cause is removed
    six(code=TRIALS_FAILED)
    assert "6 done, 2 that failed are tried again" in capsys.readouterr().out
    assert six.states() == ["complete"] * 5 + ["failed"]
    assert {row["run.dir"] for row in six.table()} == {f"{number:04d}" for number in range(6)}
    assert six.log().count("start 0002") == 2
    assert six.log().count("start 0005") == 1  # non-finite


def test_a_training_that_hangs_is_killed(tmp_path):
    space = """search.space={"model.n_layer": {"choices": [7]}}"""
    hangs = StubSweep(tmp_path / "hangs", space, "sweep.hang_minutes=0.02", "trials=1")(code=TRIALS_FAILED)
    assert hangs.states() == ["failed"]


def test_too_many_failures_in_a_row_stop_the_sweep(tmp_path, capsys):
    space = """search.space={"model.n_layer": {"choices": [3]}, "optimizer.lr": {"low": 1e-4, "high": 1}}"""
    sick = StubSweep(tmp_path / "one", space, "sweep.max_failures=3")(code=TRIALS_FAILED)
    assert sick.states() == ["failed"] * 3
    assert "3 trials in a row failed, so no more are begun (sweep.max_failures=3)" in capsys.readouterr().out


def test_a_killed_sweep_ends_with_the_table_of_one_that_was_not(tmp_path):
    words = [LR, "trials=6", "search.startup_trials=3", "search.pruner=median"]
    straight = StubSweep(tmp_path / "straight", *words)()
    assert {"complete", "pruned"} <= set(straight.states())
    killed = StubSweep(tmp_path / "killed", *words)
    for goal in (1, 3):
        killed.hold.write_text(f"{goal:04d}")
        process = killed.start(STUB_STOP_SECONDS="0.4")
        metrics = killed.path / "trials" / f"{goal:04d}" / "metrics.jsonl"
        wait_until(lambda file=metrics: file.exists() and file.read_bytes().count(b"\n") >= 3, process)
        process.kill()
        process.communicate()
        with open(killed.path / "journal.jsonl", "ab") as journal:
            journal.write(b'{"op_code":5,"worker_id":"cut he')  # as a full disk leaves it
    killed()  # at once: the killed one's training is still on its way out, and must be waited for
    assert killed.table() == straight.table()
    assert any(killed.log().count(f"start {number:04d}") > 1 for number in range(6))
    assert all(killed.log().count(f"start {number:04d}") <= 2 for number in range(6))


def test_a_signal_stops_all_trials_with_a_checkpoint_and_the_same_command_continues(tmp_path):
    one = StubSweep(tmp_path / "one", LR, "search.sampler=random", "trials=3", "workers=2")
    one.hold.touch()
    process = one.start()
    metrics = [one.path / "trials" / name / "metrics.jsonl" for name in ("0000", "0001")]
    wait_until(lambda: all(file.exists() and file.read_text() for file in metrics), process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == STOPPED, printed
    assert re.search("^0 of 3 trials$.*The same command continues the sweep", printed, re.MULTILINE | re.DOTALL)
    assert sorted(one.log()) == ["start 0000", "start 0001", "stop 0000", "stop 0001"]
    one.hold.unlink()
    one()
    assert one.states() == ["complete"] * 3


def test_each_seed_is_a_run_of_its_own(tmp_path, capsys):
    seeds = StubSweep(tmp_path / "seeds", LR, "trials=2", "seeds=3")()
    assert list(seeds.table()[0]) == ["rank", "value", "standard_error", "state", "optimizer.lr", "run.dir"]
    assert float(seeds.table()[0]["standard_error"]) == pytest.approx(0.01 / 3**0.5)  # the stub adds seed / 100
    assert re.search(r"^1 +\d+\.\d{4} +0\.0058 +complete ", capsys.readouterr().out, re.MULTILINE)
    assert seeds.log().count("start 0001-2") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (['search.space={"tokenizer": {"choices": ["byte", "char"]}}'], "Add sweep.metric=val/bits_per_byte"),
        (
            ['search.space={"data.source": {"choices": ["a.txt", "b.txt"]}}', "tokenizer=bpe", "data.val_source=a.txt"],
            "Add sweep.metric=val/bits_per_byte",
        ),
        (['search.space={"init.from": {"choices": ["a.txt", "b.txt"]}}', "tokenizer=bpe"], "metric=val/bits_per_byte"),
        (['search.space={"data.source": {"choices": ["a.txt", "b.txt"]}}'], "validated on different texts"),
        (['search.space={"model.n_head": {"choices": [3]}}', "model.n_embd=16"], "At model.n_head=3: "),
        ([LR, "run.dir=x"], "The sweep gives each trial its run.dir"),
        ([LR, "search.pruner=median", "validate.every_steps=0"], "makes none before the end"),
        (["search=lrr", "wrokers=2"], "Did you mean search=lr?"),
    ],
)
def test_what_can_not_be_compared_or_trained_is_named_before_anything_is_written(folder, words, says):
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("how much wood would a woodchuck chuck if " * 30)
    wrong = StubSweep(folder / "one", *words)
    with pytest.raises(UserFault) as caught:
        wrong.plan()
    assert says in str(caught.value)
    assert not wrong.path.exists()


def test_experiments_with_other_tokenizers_are_compared_by_bits_per_byte(tmp_path):
    (tmp_path / "a.txt").write_text("how much wood would a woodchuck chuck if " * 30)
    words = ['search.space={"experiment": {"choices": ["demo", "shakespeare_char"]}}', "data=text"]
    words += [f"data.source={tmp_path / 'a.txt'}", f"data.val_source={tmp_path / 'a.txt'}", f"sweep.dir={tmp_path}"]
    with pytest.raises(UserFault, match="can't be compared between vocabularies"):
        read_sweep(words, STUB)
    assert read_sweep([*words, "sweep.metric=val/bits_per_byte"], STUB).trials == 20


def test_a_sweep_is_not_continued_with_other_settings(tmp_path):
    one = StubSweep(tmp_path / "one", """search.space={"batch_tokens": {"choices": [100, 200]}}""", "trials=1")()
    with pytest.raises(UserFault, match="was begun with other settings"):
        one("optimizer.weight_decay=0.5")


def test_causes_in_words():
    assert cause_of(-11, []).endswith("ended by SIGSEGV (exit -11)")
    assert cause_of(1, []).endswith("it printed nothing")
    assert cause_of(2, ["Error: no"]) == "wrong settings or data (exit 2)"


def test_a_real_sweep(tmp_path, monkeypatch):
    """Of one trial: the stub shows what more are."""
    monkeypatch.undo()  # with the picture
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "text.txt").write_text("how much wood would a woodchuck chuck if " * 30)
    words = [*TINY, "data.source=text.txt", "trainer.max_steps=2", "validate.every_steps=1", "seed=2"]
    assert _dispatch(["sweep", *words, LR, "trials=1", "sweep.dir=sweep"]) == 0
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "seed: 2\n" in (tmp_path / "sweep" / "trials" / "0000" / "config.yaml").read_text()


def test_a_grid_trains_each_point_and_ends_as_the_first_that_failed(folder, monkeypatch, capsys):
    monkeypatch.setattr(cli, "command_line", lambda command: [sys.executable, STUB[-1]])
    grid = ["train", "-m", *StubSweep(folder / "one").arguments[:-1], "model.n_layer=6,1"]
    assert _dispatch(grid) == NON_FINITE
    printed = capsys.readouterr().out
    assert "=== Trial 1: model.n_layer=1" in printed
    assert "trial 0: FAILED training became non-finite (exit 5)  model.n_layer=6" in printed
    assert "2 of 2 trials, 1 failed" in printed
    assert sorted(path.name[:6] for path in (folder / "runs").iterdir() if path.is_dir()) == ["text-1", "text-6"]
