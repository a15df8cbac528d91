"""wandb and TensorBoard get every row, offline by default, and never stop a training; metrics.jsonl has all rows."""

import json
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from minigpt.config.schema import LoggerConfig
from minigpt.rundir import loggers
from minigpt.rundir.loggers import Tracker


class FakeWandb(ModuleType):
    """In the place of wandb: notes what it is given, and fails or hangs where it is told to."""

    def __init__(self):
        super().__init__("wandb")
        self.rows, self.begun, self.fails, self.hangs, self.ended = [], [], "", False, False

    def init(self, **options):
        self.begun.append(options)
        if self.fails == "init":
            raise OSError("no such server")
        return SimpleNamespace(url=None, log=self.log, finish=self.finish)

    def log(self, row, step):
        if self.fails == "log" and step >= 4:
            raise RuntimeError("its process is gone")
        self.rows.append({"step": step, **row})

    def finish(self):
        time.sleep(600 if self.hangs else 0)
        self.ended = True


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def numbers(rows):
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def test_wandb_gets_the_rows_and_no_secret(run, wandb, monkeypatch, capsys):
    monkeypatch.setenv("MY_API_KEY", "hunter2hunter2")
    run("logger=wandb", "logger.project=shakespeare")
    assert wandb.rows == numbers(run.rows())
    (begun,) = wandb.begun
    assert (begun["mode"], begun["project"], begun["dir"]) == ("offline", "shakespeare", str(run.path))
    assert begun["config"]["trainer"]["max_steps"] == 6
    assert "hunter2" not in json.dumps(begun, default=str)
    assert wandb.ended
    assert "wandb sync" in capsys.readouterr().out


def test_a_run_that_continues_continues_the_run_at_wandb(run, wandb):
    run("logger=wandb")
    run("logger=wandb", "trainer.max_steps=8")
    first, second = wandb.begun
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    assert [row["step"] for row in wandb.rows] == [1, 2, 4, 6, 8]


@pytest.mark.parametrize("fails", ["init", "log"])
def test_a_wandb_that_fails_costs_one_sentence(run, wandb, capsys, fails):
    wandb.fails = fails
    run("logger=wandb")
    assert run.rows()[-1]["step"] == 6
    assert capsys.readouterr().out.count("wandb gets no more rows") == 1


def test_a_wandb_that_does_not_finish_is_left_behind(run, wandb, monkeypatch, capsys):
    monkeypatch.setattr(loggers, "FINISH_SECONDS", 0.1)
    wandb.hangs = True
    run("logger=wandb")
    assert "wandb did not finish within" in capsys.readouterr().out
    assert not wandb.ended


def test_tensorboard_shows_every_number(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run("logger=tensorboard")
    shown = EventAccumulator(str(run.path / "tensorboard"))
    shown.Reload()
    for key in ("train/loss", "val/loss", "lr"):
        kept = [(row["step"], row[key]) for row in run.rows() if row.get(key) is not None]
        assert [(event.step, pytest.approx(event.value)) for event in shown.Scalars(key)] == kept


def test_a_tensorboard_that_fails_costs_one_sentence(tmp_path, monkeypatch, capsys):
    broken = ModuleType("torch.utils.tensorboard")
    broken.SummaryWriter = lambda *_, **__: 1 / 0
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", broken)
    tracker = Tracker(LoggerConfig(name="tensorboard"), tmp_path, settings={}, step=0)
    tracker.log({"step": 1, "train/loss": 2.0})
    tracker.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tensorboard gets no more rows (ZeroDivisionError")


@pytest.mark.soak
def test_the_real_wandb_offline(run, capsys):
    run("logger=wandb")
    assert list(run.path.glob("wandb/offline-run-*/run-*.wandb"))
    assert "wandb sync" in capsys.readouterr().out
