"""fp16: the loss is scaled, a step whose gradients overflow is skipped, and the scale goes on where the run does."""

import json
import shutil
from functools import partial

import pytest
import torch

from minigpt.verify import compare_runs
from tests.units.training.test_step import decide_late

FP16 = ["trainer.precision=fp16", "logger.every_steps=1", "checkpoint.every_steps=4", "trainer.max_steps=12"]


def begin_with_scale(monkeypatch, scale, growth_interval=2000):
    scaler = partial(torch.amp.GradScaler, init_scale=scale, growth_interval=growth_interval)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)


def events(run, kind):
    return [event["step"] for event in run.events() if event["event"] == kind]


def test_a_run_learns_as_in_fp32(run, tmp_path):
    run("trainer.max_steps=12", "logger.every_steps=1")
    single = run.path.rename(tmp_path / "fp32")
    run(*FP16)
    wanted = [json.loads(line)["train/loss"] for line in (single / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/loss"] for row in run.rows()] == pytest.approx(wanted, rel=2e-3)
    norms = [json.loads(line)["train/grad_norm"] for line in (single / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/grad_norm"] for row in run.rows()] == pytest.approx(norms, rel=2e-2)


def test_a_scale_that_is_too_high_costs_steps_but_is_no_fault_of_the_guards(run, monkeypatch):
    begin_with_scale(monkeypatch, 2.0**22)
    run(*FP16, "guard.max_skips=1")
    lost = events(run, "overflow")
    assert lost == list(range(1, len(lost) + 1))
    assert 2 < len(lost) < 12
    assert not events(run, "skipped")
    assert run.rows()[-1]["train/grad_norm"] > 0


@pytest.mark.parametrize("late", [False, True])
def test_a_run_continues_to_the_same_bytes_with_its_scale(run, monkeypatch, tmp_path, late):
    """The scale falls from 2^22, and rises again after every three steps without an overflow."""
    begin_with_scale(monkeypatch, 2.0**22, growth_interval=3)
    if late:
        decide_late(monkeypatch)
    settings = [*FP16, "trainer.max_steps=16", "checkpoint.keep_last=9"]
    whole = run(*settings).rename(tmp_path / "whole")
    folders = sorted(whole.glob("checkpoints/step-*"))
    states = [json.loads((folder / "state.json").read_text()) for folder in folders]
    assert len({state["loss_scale"] for state in states}) > 1
    assert len({state["loss_scale_steps"] for state in states}) > 1
    shutil.copytree(whole, run.path)
    for folder in folders[2:]:
        shutil.rmtree(run.path / "checkpoints" / folder.name)
    run(*settings)
    assert compare_runs(whole, run.path)[1] == []
