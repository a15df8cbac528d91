"""A checkpoint survives a power cut; a damaged one is set aside; a full disk loses nothing."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from minigpt.checkpoint import folder as checkpoints
from minigpt.checkpoint.folder import list_checkpoints
from minigpt.checkpoint.load import load_checkpoint
from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault
from minigpt.verify import compare_runs
from tests.promises.test_safe import put

SETTINGS = ["trainer.max_steps=8", "checkpoint.every_steps=2", "checkpoint.keep_last=3"]
GOLDEN = Path(__file__).parents[1] / "golden" / "first_run"  # its checkpoint was written by version 0.1.0


@pytest.fixture(scope="module")
def finished(tmp_path_factory, new_run):
    run = new_run(tmp_path_factory.mktemp("finished"))
    run(*SETTINGS)
    return run


@pytest.fixture
def cut_off(finished):
    """The run as it stood after step 6, where it was killed; what it was writing lies about."""
    kept = finished.folder / "kept"
    shutil.copytree(finished.path, kept)
    shutil.rmtree(finished.path / "checkpoints" / "step-000000008")
    (finished.path / "checkpoints" / ".step-000000008.tmp").mkdir()
    yield finished, kept
    shutil.rmtree(finished.path)
    kept.rename(finished.path)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[random.Random(3).randrange(len(content))] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "MANIFEST.json"])
def test_a_damaged_checkpoint_is_set_aside_and_the_run_ends_with_the_same_bytes(cut_off, capsys, name):
    run, straight = cut_off
    flip_a_bit(run.path / "checkpoints" / "step-000000006" / name)
    run(*SETTINGS)
    assert "A checkpoint is damaged" in capsys.readouterr().out
    assert (run.path / "checkpoints" / "step-000000006.damaged").is_dir()
    assert not list(run.path.glob("checkpoints/.step-*"))
    assert compare_runs(straight, run.path)[1] == []


def test_with_all_of_them_damaged_training_is_never_started_over(cut_off):
    run, _ = cut_off
    for path in list_checkpoints(run.path / "checkpoints"):
        (path / "optimizer.safetensors").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(NoUsableCheckpoint, match=r"(?s)NOT started over.*step-000000006.*step-000000004"):
            run(*SETTINGS)


@pytest.fixture
def full_disk(monkeypatch):
    """As many writes of checkpoints fail as the list says."""
    real, full = checkpoints._write_flushed, [0]

    def write(path, content):
        if full[0]:
            full[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, content)

    monkeypatch.setattr(checkpoints, "_write_flushed", write)
    return full


def test_a_disk_that_is_full_for_a_while_costs_a_warning_and_no_byte(finished, full_disk, capsys):
    straight, full_disk[0] = finished.path.rename(finished.folder / "straight"), 1
    finished(*SETTINGS)
    assert "No space left on device" in capsys.readouterr().out
    assert [event["event"] for event in finished.events()].count("save_failed") == 1
    assert compare_runs(straight, finished.path)[1] == []


def test_a_disk_that_stays_full_ends_the_run_with_exit_code_4_and_the_old_checkpoint(finished, tmp_path, full_disk):
    run_directory = shutil.copytree(finished.path, tmp_path / "run")
    full_disk[0] = 99
    longer = [*SETTINGS[1:], "trainer.max_steps=12", f"run.dir={run_directory}"]
    with pytest.raises(StorageFailure, match=r"step 12 could not be written.*No space left.*Earlier checkpoints"):
        finished(*longer)
    full_disk[0] = 0
    assert list_checkpoints(run_directory / "checkpoints")[-1].name == "step-000000008"
    finished(*longer)
    assert list_checkpoints(run_directory / "checkpoints")[-1].name == "step-000000012"


def test_a_checkpoint_whose_weights_are_of_another_shape_is_refused(finished, tmp_path):
    checkpoint = shutil.copytree(list_checkpoints(finished.path / "checkpoints")[-1], tmp_path / "stranger")
    config = json.loads((checkpoint / "config.json").read_bytes())
    config["model"]["n_embd"] = 24
    put(checkpoint, "config.json", json.dumps(config).encode())
    with pytest.raises(UserFault, match="not of this model's shape"):
        load_checkpoint(checkpoint)


def test_weights_of_the_first_version_still_load():
    wanted = json.loads((GOLDEN / "wanted.json").read_bytes())
    loaded = load_checkpoint(GOLDEN)
    logits = loaded.model(torch.tensor([loaded.tokenizer.encode("how much")]))
    assert logits[0, -1, :4].tolist() == pytest.approx(wanted["logits"], abs=1e-4)
