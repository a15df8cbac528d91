"""Baselines of a run: in its last lines, its picture and its report; a request to stop leaves them out."""

import json
import os
import re
import signal
import statistics

import pytest

from minigpt.training import finish, token_losses


@pytest.fixture
def train(run):
    """Trains for a step; more arguments may be given."""

    def go(name="a", *more):
        run.path = run.folder / name
        return run("trainer.max_steps=1", *more)

    return go


@pytest.mark.report
def test_they_stand_in_the_last_lines_the_report_and_the_run(train, capsys, monkeypatch):
    path = train()
    rows = json.loads((path / "baseline.json").read_text())["baselines"]
    assert [row["name"].partition(" ")[0] for row in rows] == ["7-gram", "xz"]
    shown, report = capsys.readouterr().out, (path / "report.html").read_text()
    for row in rows:
        assert f"Baseline       {row['bits_per_byte']:.4f} bits per byte  {row['name']}" in shown
        assert f"{row['name']}: {row['bits_per_byte']:.3f}" in report
    assert shown.count("Measuring the baselines") == 1
    monkeypatch.setattr(finish, "write_report", lambda path: None)
    other = train("b", "seed=2")
    assert (other / "baseline.json").read_text() == (path / "baseline.json").read_text()
    assert "Measuring" not in capsys.readouterr().out
    train()  # it is finished
    assert "bits per byte  xz after the training text" in capsys.readouterr().out


def test_a_signal_leaves_them_out_and_the_run_is_finished(train, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(finish, "baselines", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(finish, "write_report", drawn.append)
    path = train()
    assert "The baselines were left out" in capsys.readouterr().out
    assert not (path / "baseline.json").exists()
    assert drawn == [path]


def test_trouble_with_them_does_not_spoil_the_training(train, capsys, monkeypatch):
    def broken(*_, **__):
        raise MemoryError("too large")

    monkeypatch.setattr(finish, "baselines", broken)
    train()
    assert "The baselines were left out: MemoryError: too large" in capsys.readouterr().out


@pytest.mark.report
def test_the_losses_of_tokens_are_those_of_the_best_validation(train):
    path = train("a", "trainer.max_steps=30", "validate.every_steps=10", "optimizer.lr=1e-2")
    found = json.loads((path / "tokens.json").read_text())
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    best = min((row for row in rows if "val/loss" in row), key=lambda row: row["val/loss"])
    losses = [token["nats"] for token in found["tokens"][1:]]
    assert found["tokens"][0]["nats"] is None
    assert (found["step"], statistics.mean(losses)) == (best["step"], pytest.approx(best["val/loss"], abs=1e-3))
    assert [(each["first"], each["last"]) for each in found["positions"]] == [(1, 1), (2, 2), (3, 4), (5, 8)]
    assert found["positions"][1]["nats"] == pytest.approx(statistics.mean(losses[1::8]), abs=1e-3)
    assert "".join(token["text"] for token in found["tokens"]) in (path.parent / "text.txt").read_text()
    page = (path / "report.html").read_text()
    assert f'title="{losses[0]:.2f} nats"' in page
    assert 'aria-label="loss by place in the window"' in page


@pytest.mark.report
def test_what_can_not_be_measured_does_not_spoil_the_training(train, capsys, monkeypatch):
    monkeypatch.setattr(token_losses, "CPU_FLOPS", 1.0)
    assert not (train() / "tokens.json").exists()  # too large
    monkeypatch.setattr(token_losses.folder, "best_checkpoint", lambda folder: folder / "gone")
    monkeypatch.setattr(token_losses, "CPU_FLOPS", 1e9)
    assert (train("b") / "report.html").exists()
    assert "The losses of single tokens were left out: UserFault: " in capsys.readouterr().out


def test_a_loss_that_rises_again_is_named(train, capsys):
    path = train()
    capsys.readouterr()
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    better = rows[-1] | {"step": 0, "val/loss": 8.5, "train/loss": 9.0}
    rows = [row | ({"val/loss": 9.0} if "val/loss" in row else {}) for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [better, *rows]))
    train()
    screen = capsys.readouterr().out
    assert re.search(r"^Verdict        \S+ bits per byte, .*overfit after step 0: ", screen, re.MULTILINE)
    assert "Validation rose from" in screen
