"""What the command shows and how it ends."""

import json
import os
import signal
import tempfile
import time

import pytest

from minigpt.benchmark import command, gpu, loading, sampling, tokens


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_everything_but_training_is_shown_with_its_table(plan_of, capsys, monkeypatch, at_once):
    monkeypatch.setattr(sampling, "BATCHES", (1, 2))
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)
    monkeypatch.setattr(loading, "SECONDS", 0.001)
    assert command.benchmark([plan_of("what=sampling,loading", "rounds=2")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Machine    ")
    titles = ["## Sampling, c0", "## Data loading, c0"]
    assert [line for line in lines if line.startswith("## ")] == titles
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert {"minigpt int8, batch 1", "minigpt int8, batch 2", "from step 1,000,000"} <= {row[0] for row in rows}
    assert any(line.startswith("Round 2/2  sampling: minigpt fp32") for line in lines)
    assert lines[-1].startswith("sampling c0 at batch 1, tokens/s: minigpt fp32 ")


def test_side_by_side_with_another_mathematics_ends_void_with_exit_code_1(plan_of, checkout, capsys, at_once):
    text = (checkout / "model.py").read_text()
    (checkout / "model.py").write_text(text.replace("return logits, F.cross", "return logits, 1.01 * F.cross"))
    assert command.benchmark([plan_of(f"nanogpt={checkout}", "what=training")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Machine    ")
    assert any("do NOT agree" in line for line in lines)
    assert any(line.startswith("nanoGPT compiled is left out: ") and "no compiler here" in line for line in lines)
    assert any(line.startswith("| nanoGPT  ") for line in lines)
    assert lines[-1].startswith("VOID: the curves differ. ratios c0 fp32: over the bare loop ")
    assert "; nanoGPT " in lines[-1]


def test_sigterm_leaves_no_folder_behind(plan_of, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []

    def killed(bench):
        made.append(bench.folder)
        assert bench.folder.is_dir()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # never so long: the signal is there

    monkeypatch.setitem(command.MEASURE, "training", killed)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        command.benchmark([plan_of("what=training")])
    assert made[0].parent == tmp_path
    assert list(tmp_path.glob("minigpt-benchmark-*")) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_preset_for_a_gpu_ends_in_one_table_and_one_json(plan_of, tmp_path, monkeypatch, at_once, checkout):
    """On a CPU at a tiny size: every line of what waits for a GPU is measured, and written down."""
    monkeypatch.setattr(sampling, "BATCHES", (1,))
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)
    monkeypatch.setattr(gpu, "KILLS", 1)
    chosen = ("as chosen", "not compiled", "deterministic")  # the compiler alone takes half a minute
    monkeypatch.setattr(gpu, "VARIANTS", {name: gpu.VARIANTS[name] for name in chosen})
    monkeypatch.setattr(tokens, "LARGE_TOKENS", 12_000)
    plans = plan_of("preset=gpu", f"write_to={tmp_path / 'out'}", f"nanogpt={checkout}", all_sizes=True)
    assert command.benchmark(plans) == 0
    text = (tmp_path / "out" / "benchmark.md").read_text()
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")][2:]
    parts = {(size, part) for size, part, *_ in rows}
    both = {(size, "Training step") for size in ("124m", "350m")}
    assert parts == both | {("124m", part) for part in ("Choices of the trainer", "Exact resume", "Sampling")}
    assert ["124m", "Exact resume", "deterministic, killed 1 times", "the same bytes at its end"] in rows
    variants = [row[2] for row in rows if row[1] == "Choices of the trainer"]
    assert variants[:1] == ["as chosen"]
    assert {"not compiled", "deterministic"} <= set(variants)
    assert "nanoGPT is left out: train.py: its process ended" in text  # this one knows 65 tokens only
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert sum(len(section["rows"]) for section in found["sections"]) == len(rows)
    assert any(line.startswith("Machine") for line in found["about"])
