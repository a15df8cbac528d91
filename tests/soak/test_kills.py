"""Trials K1, K2, K4, K6 and K15 with real processes and real SIGKILLs, and exact resume where steps are compiled."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import list_checkpoints, step_of, verify
from minigpt.rundir.rows import read_rows
from minigpt.verify import compare_runs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
KILLS = 200
STEPS = 400


def test_k15_a_run_killed_200_times_ends_with_the_bytes_of_one_that_was_not(place):
    began = time.perf_counter()
    straight = place.finish("straight", f"trainer.max_steps={STEPS}")
    seconds_per_step = (time.perf_counter() - began) / STEPS
    moments, kills, starting, lost = random.Random(15), 0, 0, 0
    step, while_starting, slept = 0, False, 0.0
    checkpoints = place.folder / "killed" / "checkpoints"
    while kills < KILLS:
        found = list_checkpoints(checkpoints)
        for path in found:
            verify(path)  # whatever has its final name is whole, at any instant
        step, before = step_of(found[-1]) if found else 0, step
        if step > before and not while_starting:  # a machine that others used at first is faster now
            seconds_per_step = min(seconds_per_step, slept / (step - before))
        while_starting = moments.random() < 0.15
        wait = 0.3 if while_starting else 2 * (STEPS - step) / (KILLS - kills + 1) * seconds_per_step + 0.05
        slept = wait * moments.random()
        if place.kill_after(
            slept, "killed", f"trainer.max_steps={STEPS}",
            while_starting=while_starting,
        ):  # fmt: skip
            kills += 1
            starting += while_starting
        else:
            lost += 1
            assert lost < 3, "the run ends before it is killed often enough"
    place.finish("killed", f"trainer.max_steps={STEPS}")
    compared, differences = compare_runs(straight, place.folder / "killed")
    assert differences == []
    print(f"\nkilled {kills} times ({starting} while it started), {place.starts('killed')} starts; equal: {compared}")


@pytest.mark.parametrize(
    ("extra", "kills"),
    [
        (["trainer.max_steps=120"], (9, 16, 24, 31, 45)),  # K1: several saves between one kill and the next
        (["trainer.max_steps=40", "trainer.compile=on"], (4, 8, 13)),
    ],
)
def test_kills_far_apart_plain_and_compiled(place, extra, kills):
    straight = place.finish("straight", *extra)
    for rows in kills:
        assert place.kill_at_row(rows, "killed", *extra)
    place.finish("killed", *extra)
    compared, differences = compare_runs(straight, place.folder / "killed")
    assert differences == []
    print(f"\n{extra}: {place.starts('killed')} starts; equal: {compared}")


def test_an_adapter_is_continued_exactly_and_two_processes_learn_what_one_does(place):
    base = place.finish("base", "trainer.max_steps=20")
    extra = [f"init.from={base}", "adapter=lora", "optimizer.lr=0.01", "trainer.max_steps=60", "model.dropout=0.0"]
    straight = place.finish("straight", *extra)
    for rows in (5, 11, 19):
        assert place.kill_at_row(rows, "killed", *extra)
    place.finish("killed", *extra)
    assert compare_runs(straight, place.folder / "killed")[1] == []
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    ddp = ["trainer=ddp", "trainer.devices=2", "trainer.micro_batch=2"]
    two = place.folder / "two"
    subprocess.run([sys.executable, str(script), *place.arguments("two", *extra, *ddp)], check=True)
    pairs = [[row["train/loss"] for row in read_rows(run / "metrics.jsonl")] for run in (straight, two)]
    assert pairs[0] == pytest.approx(pairs[1], rel=1e-4)
    print(f"\nadapter: {place.starts('killed')} starts; equal; two processes: {pairs[1][-1]} instead of {pairs[0][-1]}")
