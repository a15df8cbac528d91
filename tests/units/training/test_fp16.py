"""fp16: the loss is scaled, a step whose gradients overflow is skipped, and the scale goes on where the run does."""

import json
from functools import partial

import pytest
import torch

from minigpt.rundir.rows import read_rows
from tests.units.training.test_step import decide_late

FP16 = ["trainer.precision=fp16", "logger.every_steps=1", "checkpoint.every_steps=4", "trainer.max_steps=12"]


def begin_with_scale(monkeypatch, scale, growth_interval=2000):
    scaler = partial(torch.amp.GradScaler, init_scale=scale, growth_interval=growth_interval)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)


def events(run, kind):
    return [event["step"] for event in run.events() if event["event"] == kind]


def test_a_run_learns_as_in_fp32(run, tmp_path):
    single = read_rows(run("trainer.max_steps=12", "logger.every_steps=1").rename(tmp_path / "fp32") / "metrics.jsonl")
    run(*FP16)
    for key, near in (("train/loss", 2e-3), ("train/grad_norm", 2e-2)):
        assert [row[key] for row in run.rows()] == pytest.approx([row[key] for row in single], rel=near)


def test_a_scale_that_is_too_high_costs_steps_but_is_no_fault_of_the_guards(run, monkeypatch):
    begin_with_scale(monkeypatch, 2.0**22)
    run(*FP16, "guard.max_skips=1")
    lost = events(run, "overflow")
    assert lost == list(range(1, len(lost) + 1))
    assert 2 < len(lost) < 12
    assert not events(run, "skipped")
    assert run.rows()[-1]["train/grad_norm"] > 0


@pytest.mark.parametrize("late", [False, True])
def test_a_run_continues_to_the_same_bytes_with_its_scale(run, monkeypatch, late):
    """The scale falls from 2^18, and rises again after every three steps without an overflow."""
    begin_with_scale(monkeypatch, 2.0**18, growth_interval=3)
    if late:
        decide_late(monkeypatch)
    path = run.continued(*FP16, "trainer.max_steps=16")
    states = [json.loads(file.read_text()) for file in path.glob("checkpoints/step-*/state.json")]
    assert len({state["loss_scale"] for state in states}) > 1
    assert len({state["loss_scale_steps"] for state in states}) > 1
