"""Turns of the entrants on a minute model, and the verdict on their curves."""

import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from minigpt.benchmark import command, curves, steps, training
from minigpt.benchmark.agreement import compare
from minigpt.benchmark.process import TurnFailed, environment, run_turn
from minigpt.benchmark.training import BARE, OURS, Training, ratio_line


def test_whole_and_bare_time_the_steps_after_the_warm_up(minute, tokens, tmp_path, rows):
    run = tmp_path / "run"
    whole = steps.whole({"arguments": minute.arguments(tokens, f"run.dir={run}"), "warm_up": 1, "product_error": True})
    bare = steps.bare({"arguments": minute.arguments(tokens), "warm_up": 1})
    assert whole["steps"] == bare["steps"] == 2
    assert whole["ms"] > 0
    assert bare["ms"] > 0
    assert whole["first_step_at"] > 0
    assert 0 < whole["product_error"] < 1e-5
    assert rows(run)[-1]["step"] == 4


def test_validations_are_left_out_and_counted(minute, tokens, tmp_path):
    arguments = minute.arguments(tokens, f"run.dir={tmp_path / 'run'}", "validate.every_steps=1", steps=6)
    found = steps.whole({"arguments": arguments, "warm_up": 1})
    assert found["left_out"] == 4  # between the gradients of steps 2 and 6
    assert found["left_out_seconds"] > 0


def test_the_watch_divides_what_counts_by_the_steps_that_count():
    watch = steps.Watch()
    watch.moments = [0.0, 5.0, 6.0, 7.0, 9.0]
    watch.left_out = [(2.0, 3.0), (8.0, 0.5), (9.5, 7.0)]
    found = watch.result(warm_up=1)
    assert (found["ms"], found["steps"], found["left_out"]) == (pytest.approx(1e3 * 3.5 / 3), 3, 1)


def test_the_watch_looks_at_memory_now_and_then():
    watch = steps.Watch(memory_every=2)
    for _ in range(5):
        watch.tick()
    assert [step for step, _ in watch.result(warm_up=1)["memory"]] == [0, 2, 4]
    block = bytearray(200_000_000)
    block[:] = b"x" * len(block)  # touched, so that it is there
    assert steps.resident_mb() > watch.memory[0][1] + 150
    assert len(block) == 200_000_000


def test_our_curve_is_nanogpts_and_another_activation_is_found_out(minute, tokens, tmp_path, checkout, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    common = {"weights": str(tmp_path / "w.safetensors")}
    arguments = minute.arguments(tokens, "logger.every_steps=1", f"run.dir={tmp_path / 'run'}", steps=5)
    ours = curves.ours({"arguments": arguments, **common})
    theirs = {}
    for activation in ("F.gelu(self.c_fc(x))", "F.relu(self.c_fc(x))"):
        text = (checkout / "model.py").read_text().replace("F.gelu(self.c_fc(x))", activation)
        (checkout / "model.py").write_text(text)
        (tmp_path / activation[2:6]).mkdir()
        (tmp_path / activation[2:6] / "model.py").write_text(text)
        monkeypatch.delitem(sys.modules, "model", raising=False)
        task = {"arguments": arguments, "checkout": str(tmp_path / activation[2:6]), "lr": ours["lr"], **common}
        theirs[activation[2:6]] = curves.nanogpt(task)["losses"]
    monkeypatch.delitem(sys.modules, "model", raising=False)
    assert len(ours["losses"]) == 5
    same, other = (compare(ours["losses"], theirs[name], "fp32") for name in ("gelu", "relu"))
    assert same.holds
    assert same.difference < 1e-5
    assert other.difference > 10 * same.difference


@pytest.mark.parametrize(
    ("theirs", "precision", "holds"),
    [
        ([4.0, 3.0], "fp32", True),
        ([4.0, 3.0009], "fp32", True),
        ([4.0, 3.002], "fp32", False),
        ([4.0, 3.002], "bf16", True),
        ([4.0, 3.03], "bf16", False),
        ([4.0, math.nan], "bf16", False),
        ([4.0], "bf16", False),
        ([], "fp32", False),
    ],
)
def test_curves_agree_within_the_limit_of_the_precision(theirs, precision, holds):
    found = compare([4.0, 3.0], theirs, precision)
    assert found.holds == holds
    assert ("do NOT agree" in found.sentence) == (not holds)


def test_curves_are_compared_at_nanogpts_own_warm_up(minute, checkout, tmp_path, monkeypatch):
    """At the full rate from step 10 on, bf16 and fp32 parted by 0.14 nats on c1; so by 0.0015."""
    asked = []

    def turn(folder, job, **task):
        asked.append([setting for setting in task["arguments"] if setting.startswith("schedule.warmup_steps=")][-1])
        return {"losses": [4.0], "lr": [1e-5]}

    monkeypatch.setattr(training, "run_turn", turn)
    prepared = SimpleNamespace(folder=tmp_path / "data" / "tokens")
    plan = replace(minute, nanogpt=checkout)
    assert training.compare_curves(plan, tmp_path, prepared, {"threads": 1, "precision": "bf16"}).holds
    assert asked == ["schedule.warmup_steps=100"] * 2


def test_a_speed_without_a_matching_curve_is_void(minute):
    turns = {OURS: [{"ms": 10.0}], BARE: [{"ms": 8.0}], "nanoGPT": [{"ms": 30.0}]}
    choices = {"precision": "fp32", "compile": True}
    good = Training(turns, agreement=compare([1.0], [1.0], "fp32"))
    bad = Training(turns, agreement=compare([1.0], [2.0], "fp32"))
    line = "ratios c0 fp32 compiled: over the bare loop 1.250 (1.250 to 1.250); nanoGPT 3.00 (3.00 to 3.00)"
    assert ratio_line(good, minute, choices) == line
    assert ratio_line(bad, minute, choices) == f"VOID: the curves differ. {line}"


def test_side_by_side_with_another_mathematics_ends_void_with_exit_code_1(
    minute, checkout, capsys, monkeypatch, at_once
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    for module in (command, training):
        monkeypatch.setattr(module, "run_turn", at_once)
    text = (checkout / "model.py").read_text()
    (checkout / "model.py").write_text(text.replace("return logits, F.cross", "return logits, 1.01 * F.cross"))
    plan = replace(minute, nanogpt=checkout, what=("training",))
    assert command.benchmark(plan) == 1
    monkeypatch.delitem(sys.modules, "model", raising=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Machine    ")
    assert any("do NOT agree" in line for line in lines)
    assert any(line.startswith("nanoGPT compiled is left out: ") and "no compiler here" in line for line in lines)
    assert any(line.startswith("| nanoGPT  ") for line in lines)
    assert lines[-1].startswith("VOID: the curves differ. ratios c0 fp32: over the bare loop ")
    assert "; nanoGPT " in lines[-1]


def test_sigterm_leaves_no_folder_behind(minute, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(command, "run_turn", at_once)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []

    def killed(plan, folder, *_, **__):
        made.append(folder)
        assert folder.is_dir()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # never so long: the signal is there

    monkeypatch.setattr(command, "_parts", killed)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        command.benchmark(minute)
    assert made[0].parent == tmp_path
    assert list(tmp_path.glob("minigpt-benchmark-*")) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_turn_is_a_process_and_gives_back_what_its_job_says(minute, tokens, tmp_path):
    before = time.time()
    found = run_turn(tmp_path, "look", threads=1, arguments=minute.arguments(tokens))
    assert (found["vocab_size"], found["precision"], found["threads"]) == (65, "fp32", 1)
    assert before <= found["began"] <= time.time()


def test_all_entrants_have_as_many_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert [environment(threads)["OMP_NUM_THREADS"] for threads in (0, 3)] == ["7", "3"]


def test_a_turn_that_fails_says_why(minute, tmp_path):
    arguments = minute.arguments(tmp_path)  # no tokens there
    with pytest.raises(TurnFailed, match=r"bare: its process ended with exit code 2: Error: data.source="):
        run_turn(tmp_path, "bare", arguments=arguments, warm_up=1)
