"""Corpora: which files, in which order, and every source that can't be used named."""

import hashlib
import os
import sys

import pytest

from minigpt.config.schema import DataConfig
from minigpt.data.sources import corpus as module
from minigpt.data.sources.corpus import SourceGone, find_corpus
from minigpt.faults import StorageFailure, UserFault


def text(source, **keys) -> DataConfig:
    return DataConfig(name="text", source=str(source), **keys)


def labels(found) -> list[str]:
    return [file.label for file in found.files]


def test_stdlib_is_megabytes_of_source_without_tests_and_tables():
    found = find_corpus(DataConfig())
    names = labels(found)
    assert 5e6 < found.size < 12e6
    assert {"argparse.py", "json/decoder.py", "email/message.py", "typing.py"} <= set(names)
    assert not any("test" in name.split("/") or "tests" in name.split("/") for name in names)
    assert not any(name.startswith(("encodings/", "pydoc_data/", "idlelib/", "site-packages/")) for name in names)
    assert "html/entities.py" not in names
    assert names == sorted(names, key=os.fsencode)
    assert len(set(names)) == len(names)
    assert found.notes == ()


def test_stdlib_names_the_modules_an_installation_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STDLIB", ["argparse", "json", "wave"])
    monkeypatch.setattr(module.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(SourceGone, match=r"lacks.*data=text"):
        find_corpus(DataConfig())
    (tmp_path / "json" / "tests").mkdir(parents=True)
    for name in ("json/__init__.py", "json/tests/a.py", "json/b.py", "wave.py"):
        (tmp_path / name).write_text("x = 1\n")
    found = find_corpus(DataConfig())
    assert labels(found) == ["json/__init__.py", "json/b.py", "wave.py"]
    assert found.notes == ("1 modules are not installed here: argparse",)


def test_a_folder_is_its_files_in_bytewise_order(tmp_path):
    for name in ("b.txt", "B.txt", "a/z.md", "a-b.txt", "é.txt", "a/é/1", ".git/config", "a/.hidden", "empty"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"" if name == "empty" else name.encode())
    found = find_corpus(text(tmp_path))
    assert labels(found) == ["B.txt", "a-b.txt", "a/z.md", "a/é/1", "b.txt", "é.txt"]
    assert found.notes == ("left out 2 (hidden): .git, a/.hidden", "left out 1 (empty): empty")


def test_prepared_tokens_inside_the_folder_are_no_text(tmp_path):
    (tmp_path / "data" / "stdlib-byte").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "data" / "stdlib-byte" / "train.json").write_text("{}")
    assert labels(find_corpus(text(tmp_path, dir=str(tmp_path / "data")))) == ["a.txt"]
    with pytest.raises(UserFault, match=r"is data\.dir itself"):
        find_corpus(text(tmp_path, dir=str(tmp_path)))


def test_a_file_is_one_document(tmp_path):
    path = tmp_path / "my notes, a=b.txt"
    path.write_text("hello")
    (file,) = find_corpus(text(path)).files
    assert (file.path, file.label, file.size) == (path, "my notes, a=b.txt", 5)


def test_a_tilde_is_the_home_folder_unless_it_is_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for folder in ("home", "~"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.txt").write_text("x")
    assert labels(find_corpus(text("~/home.txt"))) == ["home.txt"]
    assert find_corpus(text("~/~.txt")).files[0].path == (tmp_path / "~" / "~.txt").relative_to(tmp_path)


def test_sources_that_cannot_be_used_are_named(tmp_path):
    (tmp_path / "poem.txt").touch()
    (tmp_path / "folder" / ".git").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "peom.txt": "does not exist",
        "poem.txt/x": "does not exist",
        "poem.txt": r"poem.txt is empty \(0 bytes\); wanted text",
        "folder": r"holds no text; left out 1 \(hidden\): .git",
        "pipe": "neither a file nor a folder",
    }
    for name, sentence in cases.items():
        with pytest.raises(UserFault, match=sentence):
            find_corpus(text(tmp_path / name))


def test_a_folder_of_empty_files_is_named(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(UserFault, match=r"holds no text.*; left out 1 \(empty\): a"):
        find_corpus(text(tmp_path))


def test_a_folder_without_permission_is_named(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("x")
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserFault, match=r"closed can't be read: Permission denied"):
        find_corpus(text(tmp_path))


SONNET = b"Shall I compare thee to a summer's day?\n" * 20


@pytest.fixture
def yardstick(tmp_path, monkeypatch):
    """A small text in the place of Tiny Shakespeare, and a config that keeps it in data.dir."""
    monkeypatch.setattr(module, "SHAKESPEARE_URL", "http://127.0.0.1:9/input.txt")
    monkeypatch.setattr(module, "SHAKESPEARE_SHA256", hashlib.sha256(SONNET).hexdigest())
    return DataConfig(name="shakespeare_char", dir=str(tmp_path / "data"))


def test_shakespeare_is_fetched_once(yardstick, monkeypatch):
    fetched = []

    def serve(url, sha256):
        fetched.append((url, sha256))
        return SONNET

    monkeypatch.setattr(module, "download", serve)
    for _ in range(2):
        (file,) = find_corpus(yardstick).files
        assert file.path.read_bytes() == SONNET
    assert fetched == [("http://127.0.0.1:9/input.txt", module.SHAKESPEARE_SHA256)]


def test_shakespeare_out_of_reach_names_the_ways_out(yardstick, monkeypatch):
    def refuse(url, sha256):
        raise ConnectionError("no answer within 2 s")

    monkeypatch.setattr(module, "download", refuse)
    with pytest.raises(
        SourceGone, match=r"http://127.0.0.1:9/input.txt: no answer within 2 s.*data.source=FILE.*data=stdlib"
    ):
        find_corpus(yardstick)


def test_shakespeare_that_cannot_be_kept_is_a_storage_failure(yardstick, monkeypatch, tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    monkeypatch.setattr(module, "download", lambda url, sha256: SONNET)
    with pytest.raises(StorageFailure, match=r"data.dir=DIR"):
        find_corpus(yardstick)


def test_a_local_copy_of_shakespeare_must_be_it(yardstick, tmp_path):
    yardstick.source = str(tmp_path / "copy.txt")
    (tmp_path / "copy.txt").write_bytes(SONNET)
    assert labels(find_corpus(yardstick)) == ["copy.txt"]
    (tmp_path / "copy.txt").write_bytes(SONNET[:-1])
    with pytest.raises(UserFault, match=r"not Tiny Shakespeare: its SHA-256 is .*data=text"):
        find_corpus(yardstick)
    yardstick.source = str(tmp_path / "gone.txt")
    with pytest.raises(SourceGone, match=r"not Tiny Shakespeare"):
        find_corpus(yardstick)
    yardstick.source = str(tmp_path)
    with pytest.raises(UserFault, match=r"not Tiny Shakespeare: .*it is not a file"):
        find_corpus(yardstick)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_no_utf8_is_no_obstacle(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    assert labels(find_corpus(text(tmp_path))) == ["caf\udce9.txt"]
