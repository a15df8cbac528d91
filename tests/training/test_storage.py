"""Trials D1 to D9: a disk that is full, read-only, gone or slow costs no checkpoint and no row of metrics.jsonl."""

import builtins
import errno
import os
import shutil
import tempfile
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from minigpt import files as plain_file
from minigpt.checkpoint import folder as store
from minigpt.checkpoint.folder import latest_usable, list_checkpoints, step_of, verify
from minigpt.faults import StorageFailure
from minigpt.rundir import rows
from minigpt.rundir.rows import RowFile, append_rows, read_rows
from minigpt.training import saving
from minigpt.training.step import LanguageModel
from minigpt.verify import compare_runs

SETTINGS = ["trainer.max_steps=12", "checkpoint.every_steps=2", "logger.every_steps=1"]


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def refuse_while(monkeypatch, module, name, refuses, error=full):
    """Let a function fail as long as `refuses()` is true."""
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *a, **k: error() if refuses() else real(*a, **k))


def fill_from(monkeypatch, step, space):
    """No room for the checkpoints of this step and later ones (those before may still be on their way to the disk)."""
    real = store._write_flushed

    def write(path, parts):
        saved = int(path.parent.name.split(".")[1].removeprefix("step-"))
        return full() if saved >= step and not space["free"] else real(path, parts)

    monkeypatch.setattr(store, "_write_flushed", write)


@pytest.fixture
def at_step(monkeypatch):
    """Calls a function at the beginning of a step."""

    def arrange(step, action):
        real = LanguageModel.on_before_optimizer_step

        def on_before_optimizer_step(self, optimizer):
            if self.state.step == step - 1:
                action()
            return real(self, optimizer)

        monkeypatch.setattr(LanguageModel, "on_before_optimizer_step", on_before_optimizer_step)

    return arrange


@pytest.fixture
def patient(monkeypatch):
    """Each save is over before the next step, so that it doesn't depend on the disk's speed when a failure is known."""
    real = saving.Saving.begin_write

    def begin_write(self, *arguments):
        real(self, *arguments)
        wait([self.writing])

    monkeypatch.setattr(saving.Saving, "begin_write", begin_write)


@pytest.fixture
def clean(run, tmp_path):
    """The same run on a good disk."""
    run(*SETTINGS)
    return run.path.rename(tmp_path / "clean")


@pytest.mark.usefixtures("patient")
def test_d1_a_disk_full_for_a_while_costs_a_warning_and_no_byte(run, clean, monkeypatch, at_step, capsys):
    space = {"free": True}
    at_step(6, lambda: space.update(free=False))
    at_step(9, lambda: space.update(free=True))
    monkeypatch.setattr(saving, "PAUSES", (0,) * 10)
    fill_from(monkeypatch, 6, space)
    run(*SETTINGS)
    output = capsys.readouterr().out
    assert "WARNING: the checkpoint of step 6 could not be written" in output
    assert "No space left on device" in output
    assert "can be written again" in output
    assert compare_runs(clean, run.path)[1] == []
    assert {event["event"] for event in run.events()} >= {"save_failed", "saved"}


@pytest.mark.usefixtures("patient")
def test_d1_a_disk_full_for_good_ends_the_run_with_the_old_checkpoint(run, clean, monkeypatch, at_step):
    space = {"free": True}
    at_step(6, lambda: space.update(free=False))
    monkeypatch.setattr(saving, "PAUSES", (0, 0))
    with monkeypatch.context() as patch:
        fill_from(patch, 6, space)
        with pytest.raises(StorageFailure, match=r"Earlier checkpoints are untouched.*same command again"):
            run(*SETTINGS)
    assert step_of(latest_usable(run.path / "checkpoints")) == 4
    assert not list(run.path.glob("checkpoints/.step*")), "litter"
    assert 6 < run.rows()[-1]["step"] < 12  # it went on for a while
    at_step(6, lambda: None)
    run(*SETTINGS)
    assert compare_runs(clean, run.path)[1] == []


@pytest.mark.usefixtures("patient")
def test_d1_the_last_save_must_succeed(run, clean, monkeypatch):
    with monkeypatch.context() as patch:
        real = store._write_flushed
        patch.setattr(
            store,
            "_write_flushed",
            lambda path, parts: full() if "000000012" in path.parent.name else real(path, parts),
        )
        with pytest.raises(StorageFailure, match="step 12 could not be written"):
            run(*SETTINGS)
    assert step_of(latest_usable(run.path / "checkpoints")) == 10
    run(*SETTINGS)
    assert compare_runs(clean, run.path)[1] == []


def test_d1_space_that_is_missing_from_the_start_is_named_before_step_1(run, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 20_000})())
    with pytest.raises(StorageFailure, match=r"checkpoints to come: 3 of 0\.\d MB.*0\.0 MB are free.*keep_last"):
        run(*SETTINGS)
    assert not (run.path / "metrics.jsonl").exists()


@pytest.mark.usefixtures("patient")
def test_d2_bytes_that_come_back_different_are_no_checkpoint(run, monkeypatch):
    real = store._write_flushed

    def write(path, parts):
        entry = real(path, parts)
        if path.name == "model.safetensors" and "000000004" in str(path):
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\xff")
        return entry

    monkeypatch.setattr(store, "_write_flushed", write)
    monkeypatch.setattr(saving, "PAUSES", (0,) * 3)
    run(*SETTINGS)
    assert (run.path / "checkpoints" / "step-000000004.damaged").is_dir()
    assert run.rows()[-1]["step"] == 12


def test_d4_the_folder_for_temporary_files_does_not_matter(run, monkeypatch):
    for name in ("mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory"):
        monkeypatch.setattr(tempfile, name, full)
    run(*SETTINGS)


def test_d5_a_run_directory_that_can_not_be_written_is_named_before_step_1(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file" / "run", Path("/proc/minigpt-run")):
        run.path = path
        with pytest.raises(StorageFailure, match=f"run.dir={path} can't be written"):
            run(*SETTINGS)


@pytest.mark.skipif(os.getuid() == 0, reason="permissions don't hold root back")
def test_d5_neither_without_permission(run):
    run.path.mkdir()
    run.path.chmod(0o500)
    with pytest.raises(StorageFailure, match=r"can't be written: Permission denied"):
        run(*SETTINGS)


@pytest.mark.parametrize("name", ["config.yaml", "data.json", "choices.json"])
def test_d5_a_disk_full_while_the_run_begins_is_no_bug(run, monkeypatch, name):
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: full() if Path(b).name == name else real(a, b))
    with pytest.raises(StorageFailure, match="No space left on device"):
        run(*SETTINGS)
    assert not list(run.path.glob(".*tmp*")), "litter"


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_d7_a_run_directory_that_goes_away_is_named(run, at_step, tmp_path, how):
    def delete():
        while run.path.exists():  # a checkpoint may be on its way into it
            shutil.rmtree(run.path, ignore_errors=True)

    at_step(5, delete if how == "deleted" else lambda: run.path.rename(tmp_path / "elsewhere"))
    with pytest.raises(StorageFailure, match=rf"run\.dir={run.path} is gone"):
        run(*SETTINGS)
    assert not run.path.exists()  # it is not made again behind the user's back
    if how == "moved":
        assert verify(list_checkpoints(tmp_path / "elsewhere" / "checkpoints")[-1])


@pytest.mark.parametrize("how", ["refused", "cut short"])
def test_d8_rows_that_can_not_be_written_wait_and_no_checkpoint_passes_them(
    run, clean, monkeypatch, at_step, capsys, how
):
    state = {"free": True, "saved": None}
    at_step(5, lambda: state.update(free=False))
    at_step(10, lambda: state.update(free=True, saved=[step_of(p) for p in list_checkpoints(run.path / "checkpoints")]))
    monkeypatch.setattr(saving, "PAUSES", (0,) * 10)
    real = open

    class Short:
        """A file on a disk that takes four more bytes."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, content):
            return self.file.write(content[:4])

    def limited(path, *arguments, **options):
        if state["free"] or Path(path).name != "metrics.jsonl":
            return real(path, *arguments, **options)
        return full() if how == "refused" else Short(real(path, *arguments, **options))

    monkeypatch.setattr(rows, "open", limited, raising=False)
    run(*SETTINGS)
    output = capsys.readouterr().out
    assert output.count("metrics.jsonl can't be written: No space left on device") == 1
    assert "metrics.jsonl is written again, with all its rows" in output
    assert state["saved"] == [2, 4]
    assert compare_runs(clean, run.path)[1] == []


@pytest.mark.usefixtures("patient")
def test_d8_rows_that_can_never_be_written_end_the_run(run, clean, monkeypatch, at_step):
    state = {"free": True}
    at_step(5, lambda: state.update(free=False))
    monkeypatch.setattr(saving, "PAUSES", (0,) * 2)
    with monkeypatch.context() as patch:
        refuse_while(patch, rows, "append_rows", lambda: not state["free"])
        with pytest.raises(StorageFailure, match=r"metrics\.jsonl can't be written"):
            run(*SETTINGS)
    assert [row["step"] for row in run.rows()] == [1, 2, 3, 4]
    assert step_of(latest_usable(run.path / "checkpoints")) == 4
    at_step(5, lambda: None)
    run(*SETTINGS)
    assert compare_runs(clean, run.path)[1] == []


def test_d8_a_row_file_keeps_the_order_of_its_rows(tmp_path, monkeypatch):
    file = RowFile(tmp_path / "rows.jsonl", say=lambda text: None)
    numbers = iter(range(100))
    refuse_while(monkeypatch, rows, "append_rows", lambda: next(numbers) % 3 == 0)
    for step in range(20):
        file.add({"step": step})
    file.settle()
    assert [row["step"] for row in read_rows(file.path)] == list(range(20))


CALLS = ("stat", "lstat", "open", "mkdir", "rename", "replace", "statvfs", "unlink", "scandir", "listdir")


@pytest.fixture
def storm(run, monkeypatch):
    """While storm["error"] is set, each call of the system with a path in the run directory fails with it."""
    state = {"error": 0}

    def failing(real):
        def call(path, *arguments, **options):
            if state["error"] and not isinstance(path, int) and os.fspath(path).startswith(str(run.path)):
                raise OSError(state["error"], os.strerror(state["error"]), str(path))
            return real(path, *arguments, **options)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    monkeypatch.setattr(builtins, "open", failing(open))
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0,))
    return state


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN])
def test_d10_a_file_system_that_is_away_for_a_while_costs_a_warning_and_no_byte(
    run, clean, storm, at_step, monkeypatch, capsys, number
):
    at_step(5, lambda: storm.update(error=number))
    at_step(10, lambda: storm.update(error=0))
    monkeypatch.setattr(saving, "PAUSES", (0,) * 10)
    run(*SETTINGS)
    output = capsys.readouterr().out
    assert f"WARNING: {run.path / 'metrics.jsonl'} can't be written: {os.strerror(number)}" in output
    assert "can be written again" in output
    assert compare_runs(clean, run.path)[1] == []


@pytest.mark.usefixtures("patient")
def test_d10_one_that_stays_away_ends_the_run_with_a_sentence(run, clean, storm, at_step, monkeypatch):
    once = iter([errno.ESTALE])
    at_step(5, lambda: storm.update(error=next(once, 0)))
    monkeypatch.setattr(saving, "PAUSES", (0, 0))
    with pytest.raises(StorageFailure, match=r"can't be written|could not be written") as fault:
        run(*SETTINGS)
    assert "is gone" not in str(fault.value)
    storm["error"] = 0
    assert step_of(latest_usable(run.path / "checkpoints")) == 4
    run(*SETTINGS)
    assert compare_runs(clean, run.path)[1] == []


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("config.yaml", errno.ESTALE),
        ("choices.json", errno.EMFILE),
        ("MANIFEST.json", errno.ENOTCONN),
        ("metrics.jsonl", errno.ESTALE),
    ],
)
def test_d10_a_read_that_fails_once_at_the_start_is_tried_again(run, monkeypatch, name, number):
    run("trainer.max_steps=2")
    monkeypatch.setattr(plain_file, "READ_PAUSES", (0,))
    real, failed = os.open, []

    def shaky(path, *arguments, **options):
        if str(path).endswith(name) and not failed:
            raise OSError(failed.append(1) or number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", shaky)
    run("trainer.max_steps=4")
    assert failed
    assert run.rows()[-1]["step"] == 4


def test_d9_many_leftovers_and_many_checkpoints_don_t_delay_the_start(tmp_path, monkeypatch):
    for number in range(1000):
        (tmp_path / f".step-{number:09d}.tmp-{400_000_000 + number}").mkdir()
    for step in range(500):
        store.write_checkpoint(tmp_path, step, {"state.json": [b"{}"]}, {}) if step % 100 == 0 else shutil.copytree(
            tmp_path / f"step-{step // 100 * 100:09d}", tmp_path / f"step-{step:09d}"
        )
    read = []
    real = store.verify
    monkeypatch.setattr(store, "verify", lambda path: read.append(path) or real(path))
    store.remove_unfinished(tmp_path)
    assert step_of(latest_usable(tmp_path)) == 499
    assert len(read) == 1, "checkpoints were read that are not needed"
    assert not list(tmp_path.glob(".step*"))


def test_training_does_not_wait_for_a_slow_disk(run, monkeypatch):
    """Only the copy in memory holds it up; the next save and the end wait for what is being written."""
    writes = []
    real = saving.write_checkpoint
    give_up = time.monotonic() + 30

    def slow(folder, step, *arguments, **options):
        rows = len(read_rows(run.path / "metrics.jsonl"))
        while step == 4 and len(read_rows(run.path / "metrics.jsonl")) == rows and time.monotonic() < give_up:
            time.sleep(0.05)
        time.sleep(0.3)
        path = real(folder, step, *arguments, **options)
        writes.append((step, rows, len(read_rows(run.path / "metrics.jsonl"))))
        return path

    monkeypatch.setattr(saving, "write_checkpoint", slow)
    run("trainer.max_steps=8", "checkpoint.every_steps=4", "logger.every_steps=1", "validate.every_steps=100")
    (first, begun, done), (last, *_) = writes
    assert (first, last) == (4, 8)
    assert done > begun, "training stood still while the checkpoint of step 4 was written"
    (saved,) = [event for event in run.events() if event["event"] == "saved"]
    assert saved["checkpoints"] == 2
    assert saved["seconds_until_durable_at_most"] >= 0.3


def test_a_failed_append_leaves_nothing_behind(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"step": 1}])
    with pytest.raises(TypeError):
        append_rows(path, [{"step": {1, 2}}])
    assert read_rows(path) == [{"step": 1}]


@pytest.mark.usefixtures("patient")
def test_a_failed_save_waits_for_its_next_try_however_often_saves_are_due(run, monkeypatch):
    real, tried = saving.write_checkpoint, []

    def write_checkpoint(folder, step, *arguments, **options):
        tried.append(step)
        if len(tried) == 1:
            raise StorageFailure("the disk is full")
        return real(folder, step, *arguments, **options)

    monkeypatch.setattr(saving, "write_checkpoint", write_checkpoint)
    monkeypatch.setattr(saving, "PAUSES", (3600,))
    run("checkpoint.every_steps=1", "validate.every_steps=0")
    assert tried == [1, 6]
