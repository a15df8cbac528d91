"""Sharded weights: one checkpoint format, which loads on any number of devices, and the losses of a single device."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from minigpt.checkpoint.folder import list_checkpoints
from minigpt.checkpoint.load import load_checkpoint

# Uneven shards: 18 columns, 2 heads; several micro-batches of each device in a step.
SETTINGS = [
    "trainer.precision=fp64",
    "model.n_layer=2",
    "model.n_embd=18",
    "optimizer=muon",
    "schedule=constant",
    "checkpoint.every_steps=4",
    "checkpoint.keep_every_steps=4",
]
FSDP = ["trainer=fsdp", "trainer.devices=2", "trainer.micro_batch=2"]


def minigpt_train(run, *settings):
    """The command as a user types it; it starts the second process itself."""
    command = [sys.executable, "-m", "minigpt", "train", *run.arguments(*SETTINGS, *settings)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: (row["train/loss"], row.get("val/loss")) for row in rows}


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run):
    """A run on one device, and one that goes from one device to two and back."""
    run = new_run(tmp_path_factory.mktemp("sharded"))
    run(*SETTINGS, "trainer.max_steps=12").rename(run.folder / "whole")
    run(*SETTINGS, "trainer.max_steps=4")
    run.said = minigpt_train(run, *FSDP, "trainer.max_steps=8", "samples.every_steps=8", "samples.max_new_tokens=4")
    shutil.copytree(run.path, run.folder / "sharded")
    run(*SETTINGS, "trainer.max_steps=12")
    return run


def test_a_run_goes_from_one_device_to_two_and_back_with_the_losses_of_one(place):
    whole, moved = losses(place.folder / "whole"), losses(place.path)
    assert moved.keys() == whole.keys()
    for step, (loss, val_loss) in whole.items():
        assert moved[step][0] == pytest.approx(loss, abs=1e-6)
        assert moved[step][1] == (val_loss and pytest.approx(val_loss, abs=1e-6))
    assert "devices 1 -> 2" in place.said
    assert "--- sample at step 8" in place.said


def test_a_sharded_run_saves_the_one_format(place):
    alone, sharded = (list_checkpoints(place.folder / name / "checkpoints")[-1] for name in ("whole", "sharded"))
    assert {file.name for file in sharded.iterdir()} == {file.name for file in alone.iterdir()}
    assert sharded.name == "step-000000008"
    same = load_checkpoint(place.folder / "whole" / "checkpoints" / sharded.name).model.state_dict()
    for name, tensor in load_checkpoint(sharded).model.state_dict().items():
        torch.testing.assert_close(tensor, same[name], rtol=0, atol=1e-6)
