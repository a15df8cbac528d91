"""Trial D6: the power fails at any moment of a save. What was not flushed may be on the disk, in part, or not at all.

The system calls of two saves and the clearing up behind them are recorded. Then every moment is played back onto a
disk that keeps only what the rules oblige it to keep: the bytes of flushed files, the names in flushed folders, and of
everything later all, nothing, or half.
"""

import itertools
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from minigpt.checkpoint.folder import latest_usable, prune, remove_unfinished, step_of, write_checkpoint


def contents(step):
    return {"model.safetensors": bytes([step]) * 3017, "state.json": b"%d" % step}


class Recorder:
    """Stands between folder.py and the system, and notes each call; a file's bytes when it is flushed."""

    def __init__(self, monkeypatch, root: Path):
        self.log: list[tuple] = []
        self.root = root
        real_fsync, real_rename, real_mkdir, real_rmtree = os.fsync, os.rename, Path.mkdir, shutil.rmtree

        def fsync(descriptor):
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_file():
                self.log += [("create", self.name(path)), ("write", self.name(path), path.read_bytes())]
            self.log.append(("flush", self.name(path)))
            real_fsync(descriptor)

        def rename(source, target):
            self.log.append(("rename", self.name(source), self.name(target)))
            real_rename(source, target)

        def mkdir(path, *arguments, **options):
            real_mkdir(path, *arguments, **options)
            self.log.append(("mkdir", self.name(path)))

        def rmtree(path, **options):
            if Path(path).exists():
                self.log.append(("remove", self.name(path)))
            real_rmtree(path, **options)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "rename", rename)
        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(shutil, "rmtree", rmtree)

    def name(self, path) -> str:
        return os.path.relpath(path, self.root)


@dataclass
class File:
    data: bytes = b""
    flushed: bytes = b""


@dataclass
class Folder:
    names: dict = field(default_factory=dict)  # as programs see them
    flushed: dict = field(default_factory=dict)  # as the disk holds them for certain


class Disk:
    """What a disk holds for certain, and what it may hold besides."""

    def __init__(self):
        self.root = Folder()

    def find(self, path):
        node = self.root
        for name in Path(path).parts:
            node = node.names[name]
        return node

    def play(self, kind, path, other=None):
        parent, name = self.find(os.path.dirname(path)), os.path.basename(path)
        if kind == "create":
            parent.names[name] = File()
        elif kind == "mkdir":
            parent.names[name] = Folder()
        elif kind == "write":
            self.find(path).data += other
        elif kind == "rename":
            parent.names[os.path.basename(other)] = parent.names.pop(name)
        elif kind == "remove":
            del parent.names[name]
        else:
            target = self.find(path)
            target.flushed = target.data if isinstance(target, File) else dict(target.names)

    def after_power_loss(self, place, keep_names, part, node=None):
        """Lay out what is left.

        Args:
            place: an empty folder.
            keep_names: of the checkpoints' folder, and of the folders in it: whether names that were not flushed stay.
            part: how much of a file that was not flushed stays, 0 to 1.
        """
        node = node or self.root
        for name, inner in (node.names if keep_names[0] else node.flushed).items():
            if isinstance(inner, Folder):
                (place / name).mkdir()
                self.after_power_loss(place / name, keep_names[1:], part, inner)
            else:
                whole = inner.data == inner.flushed
                (place / name).write_bytes(inner.flushed if whole else inner.data[: int(part * len(inner.data))])


def record(tmp_path, monkeypatch, action):
    """The log of an action on a folder that holds checkpoint 1."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(patch, folder)
        write_checkpoint(folder, 1, contents(1), {})
        before = len(recorder.log)
        action(folder)
    return recorder.log, before


def check_every_moment(tmp_path, log, before, wanted):
    """Lose the power after each operation. `wanted(done)`: the steps that may be the latest after `done` operations."""
    disk = Disk()
    for operation in log[:before]:
        disk.play(*operation)
    states = 0
    for done in range(before, len(log) + 1):
        for keep_names, part in itertools.product(itertools.product([False, True], repeat=2), [0, 0.5, 1]):
            place = tmp_path / f"{done}-{states}"
            place.mkdir()
            disk.after_power_loss(place, keep_names, part)
            remove_unfinished(place)
            latest = latest_usable(place, say=lambda _: pytest.fail("a damaged checkpoint under its final name"))
            assert latest is not None, log[:done]
            assert step_of(latest) in wanted(done), (step_of(latest), keep_names, part, log[done - 1][:2])
            for name, content in contents(step_of(latest)).items():
                assert (latest / name).read_bytes() == content
            states += 1
            shutil.rmtree(place)
        if done < len(log):
            disk.play(*log[done])
    return states


def test_a_power_loss_at_any_moment_leaves_the_old_or_the_new_checkpoint(tmp_path, monkeypatch):
    log, before = record(tmp_path, monkeypatch, lambda folder: write_checkpoint(folder, 2, contents(2), {}))
    assert len(log) - before > 10
    assert check_every_moment(tmp_path, log, before, lambda done: {2} if done == len(log) else {1, 2}) > 100


def test_when_old_ones_are_cleared_away_the_newest_stays(tmp_path, monkeypatch):
    def action(folder):
        for step in (2, 3):
            write_checkpoint(folder, step, contents(step), {})
        prune(folder, keep_last=2, keep_every_steps=0)

    log, before = record(tmp_path, monkeypatch, action)
    assert any(operation[0] == "remove" for operation in log)
    first = max(n for n, operation in enumerate(log) if operation[0] == "flush")  # checkpoint 3 is durable from here on
    check_every_moment(tmp_path, log, before, lambda done: {3} if done > first else {1, 2, 3})


def test_the_rows_are_on_the_disk_before_their_checkpoint(tmp_path, monkeypatch):
    rows = tmp_path / "metrics.jsonl"
    rows.write_text("{}\n")
    log, before = record(
        tmp_path, monkeypatch, lambda folder: write_checkpoint(folder, 2, contents(2), {}, after=[rows, tmp_path])
    )
    kinds = [(kind, os.path.basename(name)) for kind, name, *_ in log[before:]]
    assert kinds.index(("flush", "metrics.jsonl")) < kinds.index(("rename", next(n for k, n in kinds if k == "rename")))


@pytest.mark.parametrize("left_out", ["file", "folder"])
def test_the_model_of_the_disk_would_notice_a_flush_that_is_left_out(tmp_path, monkeypatch, left_out):
    log, before = record(tmp_path, monkeypatch, lambda folder: write_checkpoint(folder, 2, contents(2), {}))
    wanted = "model.safetensors" if left_out == "file" else "."
    shorter = log[:before] + [
        operation
        for operation in log[before:]
        if not (operation[0] == "flush" and (os.path.basename(operation[1]) or ".") == wanted)
    ]
    assert len(shorter) == len(log) - 1
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_every_moment(tmp_path, shorter, before, lambda done: {2} if done == len(shorter) else {1, 2})
