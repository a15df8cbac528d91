"""Saves that fail: a full disk costs a warning and no byte; the last save must succeed."""

import errno
import os
import time
from pathlib import Path

import lightning as L
import pytest
import torch

from minigpt.checkpoint import folder
from minigpt.checkpoint.folder import list_checkpoints
from minigpt.faults import StorageFailure
from minigpt.rundir.rows import read_rows
from minigpt.training import output, saving

SETTINGS = ["trainer.max_steps=12", "checkpoint.every_steps=2", "logger.every_steps=1"]


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_space_that_is_missing_from_the_start_is_named_before_step_1(run, monkeypatch):
    """Each better validation is saved: two stay, the best too, and a new one is whole before an old one is removed."""
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 20_000})())
    with pytest.raises(StorageFailure, match=r"checkpoints to come: 4 of 0\.\d MB.*0\.0 MB are free.*keep_last"):
        run("trainer.max_steps=12", "checkpoint.every_steps=100", "validate.every_steps=2")
    assert not (run.path / "metrics.jsonl").exists()


@pytest.mark.parametrize("fraction", [0, 0.5])
def test_space_is_counted_for_all_that_a_checkpoint_holds(run, monkeypatch, fraction):
    asked = []
    monkeypatch.setattr(saving, "require_space", lambda _, size, name: asked.append((size, name)))
    path = run(*SETTINGS, f"optimizer.average_fraction={fraction}")
    held = sum(file.stat().st_size for file in list_checkpoints(path / "checkpoints")[-1].iterdir())
    ((size, name),) = asked
    assert size / int(name.split("to come: ")[1].split()[0]) == pytest.approx(held, rel=0.1)


@pytest.mark.parametrize("name", ["config.yaml", "data.json", "choices.json"])
def test_a_disk_full_while_the_run_begins_is_no_bug(run, monkeypatch, name):
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: full() if Path(b).name == name else real(a, b))
    with pytest.raises(StorageFailure, match="No space left on device"):
        run(*SETTINGS)
    assert not list(run.path.glob(".*tmp*")), "litter"


def test_a_run_directory_that_can_not_be_written_is_named_before_step_1(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "run", Path("/proc/minigpt-run")):
        run.path = path
        with pytest.raises(StorageFailure, match=f"run.dir={path} can't be written"):
            run(*SETTINGS)


def test_a_row_that_the_disk_refuses_costs_a_warning(run, monkeypatch, capsys):
    real = output.append_row
    monkeypatch.setattr(output, "append_row", lambda path, row: full() if row["step"] in (5, 6) else real(path, row))
    run(*SETTINGS)
    assert capsys.readouterr().out.count("metrics.jsonl lacks the row of step") == 2
    assert [row["step"] for row in run.rows()] == [1, 2, 3, 4, *range(7, 13)]
    assert len(list_checkpoints(run.path / "checkpoints")) >= 2


def test_training_does_not_wait_for_a_slow_disk(run, monkeypatch):
    """Only the copy in memory holds it up; the next save and the end wait for what is being written."""
    writes, real, deadline = [], saving.write_checkpoint, time.monotonic() + 300

    def slow(folder, step, *arguments, **options):
        while step == 4 and len(read_rows(run.path / "metrics.jsonl")) == 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        path = real(folder, step, *arguments, **options)
        writes.append((step, len(read_rows(run.path / "metrics.jsonl"))))
        return path

    monkeypatch.setattr(saving, "write_checkpoint", slow)
    run("trainer.max_steps=8", "checkpoint.every_steps=4", "logger.every_steps=1", "validate.every_steps=100")
    (first, done), (last, _) = writes
    assert (first, last) == (4, 8)
    assert done > 4, "training stood still while the checkpoint of step 4 was written"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted where Linux lists them")
def test_a_save_leaves_the_threads_of_a_step_alone(run):
    """torch's operators in the saving thread would start more threads, and each later step takes 1.6 times as long."""
    threads: list[int] = []

    class Count(L.Callback):
        def on_train_batch_end(self, *_: object) -> None:
            threads.append(len(os.listdir("/proc/self/task")))

    settings = ("trainer.threads=2", "model.n_embd=256", "checkpoint.every_steps=2", "validate.every_steps=0")
    try:
        run(*settings, callbacks=[Count()])
    finally:
        torch.set_num_threads(1)
    assert len(list_checkpoints(run.path / "checkpoints")) > 1
    assert max(threads) <= threads[0] + 1  # that which writes
