"""Four processes in every layout against one, and checkpoints that go from layout to layout (`make soak-cluster`)."""

import json
import os
import subprocess
import sys

import pytest

from minigpt.verify import compare_runs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
# 24 windows of 8 tokens a step; 257 rows, widths of 18 and 54 that four shards don't divide evenly.
ODD_SIZES = ["model.n_layer=2", "model.n_embd=18", "batch_tokens=192", "trainer.precision=fp64", "schedule=constant"]
STEPS = ["trainer.max_steps=30", "checkpoint.every_steps=10", "samples.every_steps=11", "samples.max_new_tokens=4"]
LAYOUTS = {
    "ddp": ["trainer=ddp"],
    "fsdp": ["trainer=fsdp", "trainer.reshard=off"],
    "fsdp, freed after use": ["trainer=fsdp", "trainer.reshard=on"],
    "hsdp": ["trainer=hsdp", "trainer.shards=2"],
}
OPTIMIZERS = {"adamw": ["optimizer=adamw"], "muon": ["optimizer=muon", "optimizer.split_qkv=true"]}


def train(run, *settings):
    command = [sys.executable, "-m", "minigpt", "train", *run.arguments(*ODD_SIZES, *settings)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_close(one, other, within):
    rows = [[json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (one, other)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    for row, other_row in zip(*rows, strict=True):
        for key in (key for key in row if "loss" in key):
            assert row[key] == pytest.approx(other_row[key], abs=within)


@pytest.fixture(scope="module")
def alone(new_run, tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("alone"))
    for name, optimizer in OPTIMIZERS.items():
        run(*ODD_SIZES, *STEPS, *optimizer).rename(run.folder / name)
    return run


@pytest.mark.parametrize("micro_batch", [6, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_r7_four_processes_compute_what_one_does(alone, tmp_path, layout, optimizer, micro_batch):
    alone.path = tmp_path / "run"
    sizes = ["trainer.devices=4", f"trainer.micro_batch={micro_batch}"]
    train(alone, *STEPS, *OPTIMIZERS[optimizer], *LAYOUTS[layout], *sizes)
    assert_close(alone.folder / optimizer, alone.path, within=1e-10)
    whole = alone.folder / optimizer / "samples.jsonl"
    assert (alone.path / "samples.jsonl").read_text() == whole.read_text()


def test_r8_a_run_goes_from_four_devices_to_two_to_one_to_three(alone, tmp_path):
    alone.path = tmp_path / "run"
    for devices, steps in ((4, 6), (2, 12), (1, 18), (3, 30)):
        layout = ["trainer=fsdp", f"trainer.devices={devices}"] if devices > 1 else []
        train(alone, *STEPS[1:], f"trainer.max_steps={steps}", *OPTIMIZERS["muon"], *layout)
    straight = alone.folder / "muon"
    kept = (alone.path / "metrics.jsonl").read_text().splitlines()
    steps = {json.loads(row)["step"] for row in (straight / "metrics.jsonl").read_text().splitlines()}
    (alone.path / "metrics.jsonl").write_text("".join(f"{row}\n" for row in kept if json.loads(row)["step"] in steps))
    assert_close(straight, alone.path, within=1e-10)


def test_sharded_weights_are_saved_as_equal_bytes_by_equal_runs(alone, tmp_path):
    paths = [tmp_path / "one", tmp_path / "other"]
    for alone.path in paths:
        train(alone, *STEPS, *OPTIMIZERS["adamw"], "trainer=fsdp", "trainer.devices=2")
        alone.path.rename(tmp_path / "kept" if alone.path == paths[0] else tmp_path / "again")
    differing = [line for line in compare_runs(tmp_path / "kept", tmp_path / "again")[1] if "config.json" not in line]
    assert [line for line in differing if "safetensors" in line] == []
