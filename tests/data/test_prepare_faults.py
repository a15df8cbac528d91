"""Prepare: whole or not there, whatever happens: faults, damage, disks that fail, kills, several at once."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import DamagedShards, describe
from minigpt.data.preparing import make
from minigpt.data.preparing import prepare as module
from minigpt.data.preparing.prepare import mend
from minigpt.data.sources.split import split
from minigpt.faults import StorageFailure, UserFault
from minigpt.rundir import files
from minigpt.screen import tell
from tests.data.poem import keys, run, text_of, tree


def test_a_fault_of_the_text_leaves_nothing(source):
    source.write_bytes(b"caf\xe9")
    with pytest.raises(UserFault, match="byte 0xE9 at offset 3"):
        run(keys(source))
    assert not Path(keys(source).dir).exists()


def test_a_source_that_changes_while_it_is_read_is_refused(source, monkeypatch):
    def grow(*arguments):
        with open(source, "ab") as file:
            file.write(b"fox")
        return split(*arguments)

    monkeypatch.setattr(make, "split", grow)
    with pytest.raises(UserFault, match="changed while it was read"):
        run(keys(source))
    monkeypatch.undo()
    assert text_of(run(keys(source))[0].val, run(keys(source))[0].tokenizer).endswith(b"fox")


@pytest.mark.parametrize("name", ["train-000.bin", "val.json", "tokenizer.json"])
def test_damage_is_refused_by_training_and_mended_by_preparing(source, name):
    first, _ = run(keys(source))
    before = tree(first.folder)
    (first.folder / name).write_bytes(b"")
    with pytest.raises(DamagedShards, match="minigpt prepare with the same keys"):
        run(keys(source))
    said: list[str] = []
    mended = mend(keys(source), TokenizerConfig("char"), say=said.append)
    assert tree(mended.folder) == before
    assert mended.folder == first.folder
    assert name in said[0]
    assert run(keys(source))[0].fingerprint == first.fingerprint


def test_a_missing_gpt2_file_is_named_before_the_text_is_read(source, monkeypatch, tmp_path):
    def unreachable(url, sha256):
        raise ConnectionError("no answer within 2 s")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("minigpt.data.tokenizers.gpt2.download", unreachable)
    monkeypatch.setattr(module, "survey", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UserFault, match=r"tokenizer=gpt2 needs .*tokenizer=bpe"):
        run(keys(source), "gpt2")


def test_a_missing_gpt2_file_is_named_before_torch_is_loaded(source, monkeypatch, tmp_path):
    def unreachable(url, sha256):
        raise ConnectionError("no answer within 2 s")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("minigpt.data.tokenizers.gpt2.download", unreachable)
    with pytest.raises(UserFault, match=r"tokenizer=gpt2 needs .*tokenizer=bpe"):
        module.require_vocabulary(keys(source), TokenizerConfig(name="gpt2"))
    module.require_vocabulary(keys(source), TokenizerConfig(name="bpe"))
    child = "import sys, minigpt.data.preparing.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", child]).returncode == 0


def test_sidecars_of_other_tokens_are_noticed(source):
    first, _ = run(keys(source))
    path = first.folder / "prepared.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "0"}))
    with pytest.raises(DamagedShards, match="belongs to other tokens"):
        run(keys(source))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": "minigpt-prepared"}'])
def test_a_broken_prepared_json_is_unfinished_work(source, content):
    first, _ = run(keys(source))
    before = tree(first.folder)
    (first.folder / "prepared.json").write_bytes(content)
    assert tree(run(keys(source))[0].folder) == before


def failure_of(data: DataConfig) -> str | None:
    try:
        run(data)
    except StorageFailure as failure:
        return str(failure)
    return None


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_disk_that_fails_at_any_point_is_named_and_leaves_no_half_work(source, monkeypatch, call):
    """Fail the n-th call, for every n until none fails: nothing may count as prepared, and the next run is whole."""
    good = keys(source)
    good.dir += "-good"
    wanted = tree(run(good)[0].folder)
    real = getattr(os, call)
    for n in range(100):
        data = keys(source)
        data.dir += f"-{n}"
        calls = 0

        def fail(*arguments, n=n, **more):
            nonlocal calls
            calls += call != "open" or arguments[1] == os.O_RDONLY  # to be flushed: reading has more flags
            if calls == n + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **more)

        monkeypatch.setattr(os, call, fail)
        failure = failure_of(data)
        monkeypatch.setattr(os, call, real)
        if failure:
            assert "No space left on device" in failure
            assert "MB are needed" in failure
            assert "data.dir=DIR" in failure
            assert not list(Path(data.dir).rglob("*.tmp"))
        assert tree(run(data)[0].folder) == wanted
        if not failure:
            break
    assert n > 3


def test_a_data_dir_that_cannot_be_made_is_named(source):
    data = keys(source)
    data.dir = str(source)  # a file
    with pytest.raises(StorageFailure, match=r"data.dir=DIR"):
        run(data)


def test_a_data_dir_for_reading_only_is_enough_to_find(source, monkeypatch):
    first, _ = run(keys(source))
    os.utime(source, ns=(1, 1))

    def refuse(path, content):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "write_json", refuse)
    assert run(keys(source))[0].fingerprint == first.fingerprint


PROGRAM = """
import os, signal, sys
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare

source, root = sys.argv[1:]
os.fsync = lambda descriptor: None  # these folders needn't survive a power cut, and the disk is slow

def child(folder, *, dies_at=None):
    pid = os.fork()
    if pid:
        return pid
    if dies_at is not None:
        calls, real = [], os.replace
        def replace(*arguments):
            calls.append(arguments)
            if len(calls) > dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*arguments)
        os.replace = replace
    data = DataConfig(name="text", source=source, dir=f"{root}/{folder}")
    prepare(data, TokenizerConfig("char"), say=lambda line: None)
    os._exit(0)

killed = 0
for n in range(20):
    pid = child(f"killed-{n}", dies_at=n)
    if os.waitpid(pid, 0)[1] == 0:
        break
    killed += 1
    for again in [child(f"killed-{n}")]:
        assert os.waitpid(again, 0)[1] == 0
pids = [child("together") for _ in range(5)]
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
print(killed)
"""


def test_killed_at_any_point_or_run_five_at_once_it_makes_the_same_bytes(source, tmp_path):
    wanted = tree(run(keys(source))[0].folder)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "runs")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 8  # the tokenizer, a unit; two shards, two sidecars, tokenizer.json, prepared.json
    folders = [path.parent for path in (tmp_path / "runs").rglob("prepared.json")]
    assert len(folders) == 8 + 1 + 1
    for folder in folders:
        assert tree(folder) == wanted


def test_left_over_files_of_a_killed_run_are_swept(source):
    first, _ = run(keys(source))
    (first.folder / "prepared.json").unlink()
    (first.folder / "train-000.bin.4711.tmp").write_bytes(b"half")
    run(keys(source))
    assert not list(first.folder.glob("*.tmp"))


def test_without_locks_two_at_once_leave_each_other_alone(source, monkeypatch):
    def flock(file, flags):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    others = []

    def and_another(*arguments):
        if not others:
            others.append(None)
            others.append(run(keys(source))[0])
        return split(*arguments)

    monkeypatch.setattr(make, "split", and_another)
    mine, _ = run(keys(source))
    assert mine.fingerprint == others[1].fingerprint


def test_every_json_is_written_whole(source, monkeypatch):
    written = []
    real = files.write_json

    def note(path, content):
        written.append(path.name)
        real(path, content)

    monkeypatch.setattr(make, "write_json", note)
    monkeypatch.setattr("minigpt.data.shards.write_json", note)
    run(keys(source))
    assert written == ["tokenizer.json", "train.json", "val.json", "tokenizer.json", "prepared.json"]


def test_a_tilde_in_data_dir_is_the_home_folder(source, monkeypatch):
    monkeypatch.setenv("HOME", str(source.parent / "home"))
    monkeypatch.chdir(source.parent)
    data = keys(source)
    data.dir = "~/tokens"
    assert run(data)[0].folder.parent == source.parent / "home" / "tokens"
    assert not Path("~").exists()
    assert "reading" not in run(data)[1]


@pytest.mark.parametrize("summary", [None, {}, {"notes": []}, {"notes": [], "train": 5}, {"corpus": "x"}])
def test_a_summary_that_can_not_be_shown_is_unfinished_work(source, summary):
    first, _ = run(keys(source))
    path = first.folder / "prepared.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"summary": summary}))
    again, said = run(keys(source))
    assert "reading" in said
    assert describe(again) == describe(first)


def test_a_summary_of_somebody_else_moves_no_cursor(source, capsys):
    prepared, _ = run(keys(source))
    prepared.summary["notes"].append("\x1b]0;evil\x07")
    assert "\x1b" not in "".join(describe(prepared))
    tell("names: \x1b]0;evil\x07\x9b2J")
    assert capsys.readouterr().out == "names: \u241b]0;evil\u2407\ufffd2J\n"
