"""What the command shows and how it ends."""

import json
import os
import signal
import tempfile
import time
from dataclasses import replace

import pytest
import torch

from minigpt.benchmark import command, sampling, settings, training
from minigpt.machine import memory
from minigpt.training import ending


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_sampling_is_shown_with_its_table(plans_of, capsys, monkeypatch, at_once):
    monkeypatch.setattr(sampling, "BATCHES", (1, 2))
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)
    monkeypatch.setattr(command.os, "getloadavg", lambda: (0.51, 0.0, 0.0))
    assert command.benchmark(plans_of("what=sampling", "rounds=2")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Machine    ")
    assert ", torch 2." in lines[0]
    assert lines[1].startswith("WARNING: the load average is 0.51")
    assert [line for line in lines if line.startswith("## ")] == ["## Sampling, c0"]
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert {"minigpt int8, batch 1", "minigpt int8, batch 2"} <= {row[0] for row in rows}
    assert any(line.startswith("Round 2/2  minigpt fp32, batch 1") for line in lines)
    assert lines[-1].startswith("Sampling c0 fp32, times as long: ")


def test_side_by_side_with_another_mathematics_ends_void_with_exit_code_1(plans_of, checkout, capsys, at_once):
    text = (checkout / "model.py").read_text()
    (checkout / "model.py").write_text(text.replace("return logits, F.cross", "return logits, 1.01 * F.cross"))
    assert command.benchmark(plans_of(f"nanogpt={checkout}", "what=training")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("do NOT agree" in line for line in lines)
    assert any(line.startswith("nanoGPT compiled is left out: ") and "no compiler here" in line for line in lines)
    measured = [cells(line)[0] for line in lines if line.startswith("|")][2:]
    alone = [f"minigpt batches alone, step {step}" for step in ("0", "1,000,000")]
    assert measured == ["minigpt train.py", "minigpt bare loop", *alone, "nanoGPT"]
    assert lines[-1].startswith("VOID: the curves differ. Training step c0 fp32, times as long: minigpt bare loop ")
    assert "; nanoGPT " in lines[-1]


def test_sigterm_leaves_no_folder_behind(plans_of, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []

    def killed(bench):
        made.append(bench.folder)
        assert bench.folder.is_dir()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # never so long: the signal is there

    monkeypatch.setitem(command.PARTS, "training", killed)
    with pytest.raises(KeyboardInterrupt):
        command.benchmark(plans_of("what=training"))
    assert made[0].parent == tmp_path
    assert list(tmp_path.glob("minigpt-benchmark-*")) == []


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "with kills"])
def test_the_preset_for_a_gpu_ends_in_one_table_and_one_json(
    plans_of, tmp_path, monkeypatch, at_once, checkout, killed
):
    """On a CPU at a tiny size: every line of what waits for a GPU is measured, and written down."""
    if not killed:  # three processes that train; tests/test_verify.py has a shorter trial
        monkeypatch.setattr(training, "verify_resume", lambda config, command, *, kills, folder: 0)
    monkeypatch.setattr(sampling, "BATCHES", (1,))
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)
    monkeypatch.setattr(training, "KILLS", 1)
    monkeypatch.setattr(ending, "write_report", lambda path: None)
    small = {name: replace(preset, vocab_size=65) for name, preset in settings.PRESETS.items()}
    monkeypatch.setattr(settings, "PRESETS", small)  # whatever the tokens are, they are not looked at
    compiled = []  # by Dynamo alone: code for this machine would take half a minute to build

    def compiled_loss(device, loss):
        compiled.append(device)
        return torch.compile(loss, backend="eager")

    monkeypatch.setattr(memory, "compiled_loss", compiled_loss)
    assert command.benchmark(plans_of("preset=gpu", f"write_to={tmp_path / 'out'}", f"nanogpt={checkout}")) == 0
    text = (tmp_path / "out" / "benchmark.md").read_text()
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    parts = {(size, part) for size, part, *_ in rows}
    both = {(size, "Training step") for size in ("124m", "350m")}
    assert parts == both | {("124m", part) for part in ("Choices of the trainer", "Exact resume", "Sampling")}
    resumed = ["124m", "Exact resume", "deterministic, killed 1 times", "the same bytes at its end"]
    assert resumed in [row[:4] for row in rows]
    variants = [row[2] for row in rows if row[1] == "Choices of the trainer"]
    assert variants == ["minigpt train.py", *training.VARIANTS]
    assert compiled
    assert "nanoGPT compiled is left out: train.py: its process ended" in text  # it has no compiler
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert sum(len(section["rows"]) for section in found["sections"]) == len(rows)
    assert all(one["ms"] > 0 for part in found["sections"] for each in part["measurements"].values() for one in each)
    assert any(line.startswith("Machine") for line in found["about"])
