"""Sharded weights: one checkpoint format, which loads on any number of devices, and the losses of a single device.

The first failure of a rank ends all ranks, with one cause.
"""

import os
import signal

import pytest
import torch

from minigpt.checkpoint.load import load_checkpoint
from minigpt.faults import BUG
from tests.promises.test_ranks import EXACT, MINIGPT, SHARDED, SLOW, Trial, assert_close, proc

# Uneven shards: 18 columns, 2 heads; several micro-batches of each device in a step.
MUON = [*SHARDED, "optimizer=muon", "validate.every_steps=1"]
MUON += ["checkpoint.every_steps=4", "checkpoint.keep_every_steps=4"]
SAMPLES = ["samples.every_steps=8", "samples.max_new_tokens=4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run):
    """A run that goes from one device to two, of which one is killed, and back to one; and a run on one device."""
    run = new_run(tmp_path_factory.mktemp("sharded"))
    run(*EXACT, *MUON, "trainer.max_steps=4")
    run.trial = Trial(run, MINIGPT, *MUON, *SAMPLES, *SLOW, "trainer=fsdp").until(run, 9)
    os.kill(run.trial.ranks()[1], signal.SIGKILL)
    run.code = run.trial.end()
    steps = f"trainer.max_steps={run.rows()[-1]['step'] + 3}"
    run(*EXACT, *MUON, steps).rename(run.folder / "moved")
    run(*EXACT, *MUON, steps)
    return run


@proc
def test_a_killed_rank_ends_all_with_one_cause(place):
    assert place.code == BUG, place.trial.said
    assert place.trial.said.count("Error: rank 1 was killed") == 1
    assert "Traceback" not in place.trial.said
    assert "devices 1 -> 2" in place.trial.said
    assert "--- sample at step 8" in place.trial.said


@proc
def test_a_run_goes_from_one_device_to_two_and_back_with_the_losses_of_one(place):
    whole, place.path = place.rows(), place.folder / "moved"
    assert_close(whole, place.rows())


@proc
def test_a_sharded_run_saves_the_one_format(place):
    alone, sharded = (place.folder / name / "checkpoints" / "step-000000008" for name in ("run", "moved"))
    assert {file.name for file in sharded.iterdir()} == {file.name for file in alone.iterdir()}
    same = load_checkpoint(alone).model.state_dict()
    for name, tensor in load_checkpoint(sharded).model.state_dict().items():
        torch.testing.assert_close(tensor, same[name], rtol=0, atol=1e-6)
