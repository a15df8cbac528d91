"""What the command shows and how it ends."""

import os
import signal
import tempfile
import time

import pytest

from minigpt.benchmark import command, loading, sampling, tokenizing


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_everything_but_training_is_shown_with_its_table(plan_of, capsys, monkeypatch, at_once):
    monkeypatch.setattr(sampling, "BATCHES", (1, 2))
    monkeypatch.setattr(sampling, "MIN_SECONDS", 0.001)
    monkeypatch.setattr(loading, "SECONDS", 0.001)
    monkeypatch.setattr(tokenizing, "TEXT_BYTES", 20_000)
    assert command.benchmark(plan_of("what=sampling,tokenization,loading", "rounds=2")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Machine    ")
    titles = ["## Sampling, c0", "## Tokenization, c0", "## Data loading, c0"]
    assert [line for line in lines if line.startswith("## ")] == titles
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert all(["minigpt int8", batch] in [row[:2] for row in rows] for batch in ("1", "2"))
    assert {"byte", "char", "bpe", "from step 1,000,000"} <= {row[0] for row in rows}
    assert any(line.startswith("Round 2/2  sampling: minigpt fp32") for line in lines)
    assert lines[-1].startswith("sampling c0 at batch 1, tokens/s: minigpt fp32 ")


def test_side_by_side_with_another_mathematics_ends_void_with_exit_code_1(plan_of, checkout, capsys, at_once):
    text = (checkout / "model.py").read_text()
    (checkout / "model.py").write_text(text.replace("return logits, F.cross", "return logits, 1.01 * F.cross"))
    assert command.benchmark(plan_of(f"nanogpt={checkout}", "what=training")) == 1
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
        command.benchmark(plan_of("what=training"))
    assert made[0].parent == tmp_path
    assert list(tmp_path.glob("minigpt-benchmark-*")) == []
    assert signal.getsignal(signal.SIGTERM) == before
