"""Measurements of the contenders on a tiny model, and the verdict on their curves."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from minigpt.benchmark import measurement, nanogpt, steps
from minigpt.benchmark.bench import Bench
from minigpt.benchmark.measurement import measure, run
from minigpt.benchmark.nanogpt import agreement
from minigpt.data.batch import MicroBatches
from minigpt.faults import UserFault
from minigpt.model.loss import next_token_loss


def test_train_py_and_the_bare_loop_time_the_steps_after_the_warm_up(words, rows):
    typed = words()
    ours, bare = steps.train_py(typed), steps.bare(words())
    assert ours["tokens"] == bare["tokens"] == 32
    assert min(ours["ms"], bare["ms"], ours["first_at"]) > 0
    assert rows(typed)[-1]["step"] == 13


def test_the_bare_loop_makes_the_losses_of_train_py(words, tmp_path):
    typed = words("logger.every_steps=1", "trainer.micro_batch=2", steps=13)
    curve = nanogpt.our_curve(typed, str(tmp_path / "w.safetensors"))
    settled = steps.set_up(typed)
    gpt = steps.new_model(settled[0], settled[2], 65)
    loss_of = lambda tokens, targets: next_token_loss(gpt, tokens, targets)  # noqa: E731
    optimizer = steps.build_optimizer(settled[0].optimizer, gpt)
    found = steps.shortest_loop(*settled, loss_of, optimizer, rates=curve["rates"])
    assert found["losses"] == pytest.approx(curve["losses"], abs=1e-5)


def test_no_validation_lies_between_the_steps_that_are_timed(words, rows):
    typed = words()
    steps.train_py(typed)
    assert [row["step"] for row in rows(typed) if "val/loss" in row] == [13]


def test_the_stopwatch_divides_what_counts_by_the_steps_that_count(monkeypatch):
    monkeypatch.setattr(steps, "WARM_UP", 1)
    stopwatch = steps.Stopwatch()
    stopwatch.moments = [1.0, 5.0, 6.0, 7.0, 9.5]
    assert stopwatch.result(768) == {"ms": 1500.0, "tokens": 768, "first_at": 1.0}


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_batches_that_are_timed_are_a_runs_own_near_and_far(start, words, monkeypatch):
    typed, made, getitem = words("trainer.micro_batch=2"), {}, MicroBatches.__getitem__  # two of them a step

    def noted(self, index):
        made[index] = getitem(self, index)
        return made[index]

    monkeypatch.setattr(MicroBatches, "__getitem__", noted)
    found = steps.batches(typed, start)
    assert (found["ms"] > 0, found["tokens"]) == (True, 32)
    assert list(made) == list(range(2 * start, 2 * start + 26))
    assert torch.equal(made[2 * start].tokens, steps.batches_of(*steps.set_up(typed))[2 * start].tokens)


def test_our_curve_is_nanogpts_and_another_activation_is_found_out(words, tmp_path, checkout, at_once, monkeypatch):
    typed, weights = words("logger.every_steps=1", steps=14), str(tmp_path / "w.safetensors")
    ours = nanogpt.our_curve(typed, weights)
    theirs = {}
    for activation in ("gelu", "relu"):
        (tmp_path / activation).mkdir()
        text = (checkout / "model.py").read_text().replace("F.gelu(", f"F.{activation}(")
        (tmp_path / activation / "model.py").write_text(text)
        monkeypatch.delitem(sys.modules, "model", raising=False)
        found = nanogpt.their_curve(typed, weights, str(tmp_path / activation), ours["rates"])
        theirs[activation] = max(abs(a - b) for a, b in zip(ours["losses"], found["losses"], strict=True))
    assert len(ours["losses"]) == 14
    assert theirs["gelu"] < 1e-5
    assert theirs["relu"] > 10 * theirs["gelu"]


@pytest.mark.parametrize(
    ("theirs", "precision", "holds"),
    [
        ([4.0, 3.0], "fp32", True),
        ([4.0, 3.0009], "fp32", True),
        ([4.0, 3.002], "fp32", False),
        ([4.0, 3.002], "bf16", True),
        ([4.0, 3.03], "bf16", False),
        ([4.0, math.nan], "bf16", False),
        ([math.nan, 3.0], "bf16", False),
        ([4.0], "bf16", False),
        ([], "fp32", False),
    ],
)
def test_curves_agree_within_the_limit_of_the_precision(theirs, precision, holds):
    found, sentence = agreement([4.0, 3.0], theirs, precision)
    assert found == holds
    assert ("do NOT agree" in sentence) == (not holds)


def test_curves_are_compared_at_nanogpts_own_warm_up(bench_of, checkout, monkeypatch):
    """At the full rate from step 10 on, bf16 and fp32 parted by 0.14 nats on c1; so by 0.0015."""
    asked = []

    def measured(self, job, *, words, **task):
        asked.append(steps.compose("train", words).schedule.warmup_steps)
        return {"losses": [4.0], "rates": [1e-5]}

    monkeypatch.setattr(Bench, "measure", measured)
    assert nanogpt.compare_curves(bench_of(f"nanogpt={checkout}"))[0]
    assert asked == [100, 100]


def test_contenders_are_measured_in_turn_and_others_that_fail_are_left_out(bench_of, capsys):
    bench, turns, failing = bench_of("rounds=2"), [], itertools.count()

    def measured(name):
        turns.append(name)
        if name == "other" and next(failing):
            raise UserFault("no more")
        return {"ms": 1.0}

    found, notes = bench.in_turn({name: lambda name=name: measured(name) for name in ("minigpt", "other", "third")})
    assert turns == ["minigpt", "other", "third"] * 2
    assert ({name: len(each) for name, each in found.items()}, notes) == (
        {"minigpt": 2, "third": 2},
        ["other is left out: no more"],
    )
    assert "WARNING    other is left out: no more" in capsys.readouterr().out
    with pytest.raises(UserFault, match="no more"):
        bench.in_turn({"minigpt bare loop": lambda: measured("other")})


def test_a_measurement_is_a_process_and_gives_back_what_its_job_says(words, tmp_path):
    found = measure(tmp_path, "steps.probe", threads=1, words=words())
    assert (found["precision"], found["threads"]) == ("fp32", 1)


def test_the_first_step_is_counted_from_the_start_of_the_process(tmp_path, monkeypatch):
    def run(name, command, folder, threads):
        monkeypatch.setattr(measurement, "do", lambda job, task: {"first_at": time.time() + task["more"]})
        assert measurement.main(list(command[-2:])) == 0

    monkeypatch.setattr(measurement, "run", run)
    assert 5 <= measure(tmp_path, "steps.bare", more=5)["first"] < 6


def test_all_contenders_have_as_many_threads(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    command = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    assert [run("x", command, tmp_path, threads)[0][1] for threads in (0, 3)] == ["7", "3"]


def test_a_measurement_that_fails_says_why(tmp_path):
    command = [sys.executable, "-c", "import sys; print('Error: no text. Give one'); print('more'); sys.exit(2)"]
    with pytest.raises(UserFault, match=r"^bare: its process ended with exit code 2: Error: no text\. Give one$"):
        run("bare", command, tmp_path)


def test_a_program_ends_with_the_benchmark(tmp_path):
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    text = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.default_int_handler); from pathlib import Path; "
        f"from minigpt.benchmark.measurement import run; run('x', [sys.executable, '-c', {code!r}], Path('.'))"
    )
    root = str(measurement.PACKAGE.parent)
    with subprocess.Popen(
        [sys.executable, "-c", text], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.PIPE
    ) as process:
        pid = tmp_path / "pid"
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
