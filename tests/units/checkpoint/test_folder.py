"""Durable checkpoint folders: whole or absent, verified, set aside, pruned."""

import errno
import os

import pytest

from minigpt.checkpoint import folder as checkpoints
from minigpt.faults import StorageFailure

FILES = {"model.safetensors": bytes(range(256)), "state.json": b'{"step": 3}'}


def write(folder, step, val_loss=None):
    os.makedirs(folder, exist_ok=True)
    return checkpoints.write_checkpoint(folder, step, FILES, {"val_loss": val_loss})


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: (path / "state.json").write_bytes(b""),
        lambda path: (path / "model.safetensors").write_bytes(FILES["model.safetensors"][::-1]),
        lambda path: (path / "state.json").unlink(),
        lambda path: (path / "MANIFEST.json").unlink(),
        lambda path: (path / "MANIFEST.json").write_bytes(b"[]"),
    ],
    ids=["empty", "other bytes", "missing", "no manifest", "no mapping"],
)
def test_a_truncated_missing_or_foreign_file_is_damage(tmp_path, harm):
    path = write(tmp_path, 1)
    harm(path)
    with pytest.raises(checkpoints.DamagedCheckpoint):
        checkpoints.verify(path)


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_fault_at_any_call_of_a_save_leaves_the_old_checkpoint_and_no_litter(tmp_path, monkeypatch, call):
    write(tmp_path, 1)
    place = checkpoints.Path if call == "mkdir" else checkpoints.os
    real, count, failed = getattr(place, call), 0, True
    while failed:
        count, left, failed = count + 1, count + 1, False

        def fail_at(*arguments, **options):
            nonlocal left, failed
            left -= 1
            if left == 0:
                failed = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(place, call, fail_at)
            if failed_write := _fails(lambda: write(tmp_path, 2)):
                assert "No space left on device" in failed_write
            assert bool(failed_write) == failed
        checkpoints.verify(tmp_path / "step-000000001")
        checkpoints.verify(checkpoints.latest_usable(tmp_path))
        assert not list(tmp_path.glob(".step*")), "litter"
    assert count > 1


def _fails(action) -> str:
    try:
        action()
    except StorageFailure as failure:
        return str(failure)
    return ""


def test_a_disk_that_gives_back_other_bytes_is_noticed_at_once(tmp_path, monkeypatch):
    real = checkpoints._write_flushed

    def write_badly(path, content):
        entry = real(path, content)
        if path.name == "model.safetensors":
            path.write_bytes(content[:-1] + b"?")
        return entry

    monkeypatch.setattr(checkpoints, "_write_flushed", write_badly)
    with pytest.raises(StorageFailure, match="SHA-256 differs"):
        write(tmp_path, 1)
    assert checkpoints.list_checkpoints(tmp_path) == []
    assert (tmp_path / "step-000000001.damaged").is_dir()


def test_a_disk_that_cannot_be_read_sets_no_checkpoint_aside(tmp_path, monkeypatch):
    newest = write(tmp_path, 6)

    def refuse(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(checkpoints, "sha256_of", refuse)
    with pytest.raises(StorageFailure, match=r"model\.safetensors can't be read: Input/output error"):
        checkpoints.latest_usable(tmp_path, say=lambda _: None)
    assert checkpoints.list_checkpoints(tmp_path) == [newest]


def test_the_newest_the_best_and_every_nth_stay(tmp_path):
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 2.5, 60: 2.6}
    for step, loss in losses.items():
        write(tmp_path, step, loss)
    checkpoints.prune(tmp_path, keep_last=2, keep_every_steps=30)
    assert [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(tmp_path)] == [20, 30, 50, 60]
    assert checkpoints.step_of(checkpoints.best_checkpoint(tmp_path)) == 20
    checkpoints.prune(tmp_path, keep_last=2, keep_every_steps=0)
    assert [checkpoints.step_of(path) for path in checkpoints.list_checkpoints(tmp_path)] == [20, 50, 60]
