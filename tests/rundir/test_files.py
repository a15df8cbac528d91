"""Files that are replaced whole: the old one or the new one, and no litter."""

import os

import pytest

from minigpt.faults import UserFault
from minigpt.files import flush, read_json, replaced, write_file


def test_the_old_file_stays_until_the_new_one_is_whole_and_no_litter_is_left(tmp_path):
    path = tmp_path / "page.html"
    write_file(path, "old")

    def torn():
        with replaced(path) as temporary:
            temporary.write_text("half")
            assert path.read_text() == "old"
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        torn()
    assert path.read_text() == "old"
    write_file(path, b"new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_refusal_of_the_disk_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file.json"
    write_file(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        write_file(path, "new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_at_the_place_is_replaced_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "link").symlink_to(other)
    write_file(tmp_path / "link", "new")
    assert other.read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()


def test_the_bytes_and_the_name_are_flushed_in_this_order(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("rename"), replace(*names)))
    write_file(tmp_path / "file", "text")
    assert done[1:] == ["rename", str(tmp_path)]
    assert ".tmp" in done[0]


def test_a_folder_that_can_not_be_flushed_is_no_fault(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    flush(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid"):
        flush(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"{", b"\x80\x04pickle", b"[" * 100_000])
def test_a_file_that_is_no_json_is_named(content: bytes, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserFault, match=r"tokenizer.json is not JSON: it is damaged"):
        read_json(tmp_path / "tokenizer.json")


def test_a_missing_json_file_is_named(tmp_path):
    with pytest.raises(UserFault, match=r"nowhere\.json can't be read: No such file"):
        read_json(tmp_path / "nowhere.json")
