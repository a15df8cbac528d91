"""Durable checkpoint folders: whole or absent, verified, set aside, pruned."""

import errno
import json
import os
import random

import pytest

from minigpt import files as plain_file
from minigpt.checkpoint import store
from minigpt.checkpoint.load import read_file
from minigpt.checkpoint.store import (
    DamagedCheckpoint,
    best_checkpoint,
    latest_usable,
    list_checkpoints,
    prune,
    sweep_unfinished,
    verify,
    write_checkpoint,
)
from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault

FILES = {"model.safetensors": [bytes(range(256)), memoryview(bytes(512))], "state.json": [b'{"step": 3}']}


def write(folder, step, val_loss=None):
    os.makedirs(folder, exist_ok=True)
    return write_checkpoint(folder, step, FILES, {"val_loss": val_loss})


def test_what_is_written_verifies_and_equal_contents_give_equal_bytes(tmp_path):
    one, two = write(tmp_path / "a", 7), write(tmp_path / "b", 7)
    assert verify(one)["step"] == 7
    assert sorted(os.listdir(one)) == ["MANIFEST.json", "model.safetensors", "state.json"]
    for name in os.listdir(one):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_any_flipped_bit_is_noticed_and_the_older_checkpoint_is_used(tmp_path):
    generator = random.Random(1)
    for trial in range(60):
        folder = tmp_path / str(trial)
        old, new = write(folder, 5), write(folder, 6)
        victim = new / generator.choice(["MANIFEST.json", "model.safetensors", "state.json"])
        content = bytearray(victim.read_bytes())
        position = generator.randrange(len(content) * 8)
        content[position // 8] ^= 1 << (position % 8)
        victim.write_bytes(content)
        assert latest_usable(folder, say=lambda _: None) == old
        assert (folder / "step-000000006.damaged").is_dir()


def test_a_truncated_missing_or_foreign_file_is_damage(tmp_path):
    for number, harm in enumerate(
        [
            lambda path: (path / "state.json").write_bytes(b""),
            lambda path: (path / "state.json").unlink(),
            lambda path: (path / "MANIFEST.json").unlink(),
            lambda path: (path / "MANIFEST.json").write_bytes(b"[]"),
            lambda path: (path / "MANIFEST.json").write_text('{"format": 2, "files": {}}'),
            lambda path: (path / "MANIFEST.json").write_text('{"format": 1, "files": {"../x": {}}}'),
        ]
    ):
        path = write(tmp_path / str(number), 1)
        harm(path)
        with pytest.raises(DamagedCheckpoint):
            verify(path)


def test_with_every_checkpoint_damaged_training_is_never_started_over(tmp_path):
    for step in (1, 2):
        (write(tmp_path, step) / "state.json").write_bytes(b"?")
    with pytest.raises(NoUsableCheckpoint, match="NOT started over"):
        latest_usable(tmp_path, say=lambda _: None)
    with pytest.raises(NoUsableCheckpoint):  # also the second time, when all are already set aside
        latest_usable(tmp_path, say=lambda _: None)


def test_no_checkpoints_at_all_is_a_new_run(tmp_path):
    assert latest_usable(tmp_path) is None
    assert latest_usable(tmp_path / "missing") is None


@pytest.mark.parametrize("call", ["fsync", "rename", "write", "mkdir"])
def test_a_fault_at_any_call_of_a_save_leaves_the_old_checkpoint_and_no_litter(tmp_path, monkeypatch, call):
    write(tmp_path, 1)
    for count in range(1, 20):
        fault = _FailAt(call, count)
        with monkeypatch.context() as patch:
            fault.install(patch)
            try:
                write(tmp_path, 2)
            except StorageFailure:
                assert fault.struck
            else:
                assert not fault.struck
                break
        assert verify(tmp_path / "step-000000001")["step"] == 1
        whole = latest_usable(tmp_path)
        assert whole is not None
        assert not list(tmp_path.glob(".step*")), "litter"
        if whole.name == "step-000000002":  # the fault came after the rename: the checkpoint is whole
            break
    assert verify(latest_usable(tmp_path))


class _FailAt:
    """Fails the n-th call of one kind with 'no space left on device'."""

    def __init__(self, call, count):
        self.call, self.left, self.struck = call, count, False

    def strike(self):
        self.left -= 1
        if self.left == 0:
            self.struck = True
            raise OSError(errno.ENOSPC, "No space left on device")

    def install(self, patch):
        if self.call == "write":
            real = store._write_flushed

            def write_part(path, content):
                path.write_bytes(bytes(content[0])[: len(content[0]) // 2])
                self.strike()
                return real(path, content)

            patch.setattr(store, "_write_flushed", write_part)
            return
        target = store.Path if self.call == "mkdir" else store.os
        real = getattr(target, self.call)

        def call(*arguments, **options):
            self.strike()
            return real(*arguments, **options)

        patch.setattr(target, self.call, call)


def test_a_full_disk_is_named_with_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(StorageFailure, match=r"needs .* MB, 0.0 MB are free"):
        write(tmp_path, 1)


def test_the_newest_the_best_and_every_nth_stay(tmp_path):
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 2.5, 60: 2.6}
    for step, loss in losses.items():
        write(tmp_path, step, loss)
    prune(tmp_path, keep_last=2, keep_every_steps=30)
    assert [store.step_of(path) for path in list_checkpoints(tmp_path)] == [20, 30, 50, 60]
    assert store.step_of(best_checkpoint(tmp_path)) == 20
    prune(tmp_path, keep_last=1, keep_every_steps=0)  # never fewer than two
    assert [store.step_of(path) for path in list_checkpoints(tmp_path)] == [20, 50, 60]


def test_without_any_validation_the_newest_is_the_best(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step)
    assert store.step_of(best_checkpoint(tmp_path)) == 3


def test_only_what_dead_processes_left_is_swept(tmp_path):
    large = tmp_path / ".step-000000001.tmp-99999999999999"  # more than a process' number can be
    large.mkdir()
    dead = tmp_path / ".step-000000001.tmp-999999999"
    living = tmp_path / f".step-000000002.tmp-{os.getppid()}"
    dead.mkdir()
    living.mkdir()
    sweep_unfinished(tmp_path)
    assert not dead.exists()
    assert not large.exists()
    assert living.exists()


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_read_that_fails_for_a_moment_sets_no_healthy_checkpoint_aside(tmp_path, monkeypatch, number):
    write(tmp_path, 5)
    newest = write(tmp_path, 6)
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0, 0, 0))
    real, calls = store.open_plain, iter(range(1000))

    def shaky(path, *, links):
        if newest in path.parents and next(calls) % 3 < 2:  # two of three reads fail
            raise OSError(number, os.strerror(number), str(path))
        return real(path, links=links)

    monkeypatch.setattr(store, "open_plain", shaky)
    assert latest_usable(tmp_path, say=lambda _: pytest.fail("set aside")) == newest


@pytest.mark.parametrize("call", ["open", "stat", "lstat"])
def test_no_call_of_the_system_that_fails_for_a_moment_sets_a_healthy_checkpoint_aside(tmp_path, monkeypatch, call):
    newest = write(tmp_path, 6)
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0, 0))
    real, failed = getattr(os, call), []

    def shaky(path, *arguments, **options):
        if str(path).endswith("MANIFEST.json") and not failed:
            raise OSError(failed.append(1) or errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, call, shaky)
    assert latest_usable(tmp_path, say=lambda _: pytest.fail("set aside")) == newest


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN])
def test_a_list_that_fails_for_a_moment_hides_no_checkpoint(tmp_path, monkeypatch, number):
    newest = write(tmp_path, 6)
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0, 0))
    real, calls = os.scandir, iter(range(1000))

    def shaky(path):
        if path == tmp_path and next(calls) % 3 < 2:
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", shaky)
    assert list_checkpoints(tmp_path) == [newest]
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0,))
    with pytest.raises(StorageFailure, match=f"{tmp_path} can't be listed: {os.strerror(number)}"):
        list_checkpoints(tmp_path)


def test_a_read_that_fails_for_good_is_named_and_the_checkpoint_stays(tmp_path, monkeypatch):
    newest = write(tmp_path, 6)
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0, 0))

    def refuse(path, *, links):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(store, "open_plain", refuse)
    with pytest.raises(StorageFailure, match=r"MANIFEST\.json can't be read: Input/output error \(tried again"):
        latest_usable(tmp_path, say=lambda _: None)
    assert list_checkpoints(tmp_path) == [newest]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = write_checkpoint(tmp_path, 1, {"config.json": [b"{}"]}, {})
    with open(path / "config.json", "wb") as file:
        file.truncate(1 << 40)  # a sparse tebibyte: reading it would end the process
    with pytest.raises(UserFault, match=r"config\.json is 1,099,511,627,776 bytes; at most 16,777,216 make sense"):
        read_file(path, "config.json")


def test_a_link_among_the_checkpoints_is_no_checkpoint(tmp_path):
    others = write(tmp_path / "other", 9)
    mine = write(tmp_path / "mine", 1)
    (tmp_path / "mine" / others.name).symlink_to(others)
    assert list_checkpoints(tmp_path / "mine") == [mine]
    assert latest_usable(tmp_path / "mine") == mine


def test_a_checkpoint_of_another_version_keeps_nothing_from_being_tidied_up(tmp_path):
    write(tmp_path, 1)
    for step in (2, 3, 4):
        write(tmp_path, step)
    other = tmp_path / "step-000000001" / "MANIFEST.json"
    other.write_bytes(store._sealed({**json.loads(other.read_bytes()), "format": 99}))
    prune(tmp_path, keep_last=2, keep_every_steps=0)  # and raises nothing
    assert other.exists()


def test_sparse_weights_are_refused_before_they_are_read(tmp_path):
    """Their manifest says so many bytes, too."""
    path = write_checkpoint(tmp_path, 1, {"model.safetensors": [b"weights"]}, {})
    size = 1 << 43
    os.truncate(path / "model.safetensors", size)
    manifest = json.loads((path / "MANIFEST.json").read_bytes())
    manifest["files"]["model.safetensors"]["bytes"] = size
    (path / "MANIFEST.json").write_bytes(store._sealed(manifest))
    with pytest.raises(UserFault, match=r"model\.safetensors is 8,796,093,022,208 bytes; at most"):
        read_file(path, "model.safetensors")
