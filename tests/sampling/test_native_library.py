"""Building decode.cpp: once, kept where nobody else can write, and a sentence where it can't be done."""

import os
import stat

import pytest

from minigpt.sampling.native import library as native_library
from minigpt.sampling.native.library import NoNativeCode, build, find_compiler, library, own_folder


@pytest.fixture(autouse=True)
def first_try():
    """A process tries once; here each test is the first."""
    native_library.first_try.cache_clear()
    yield
    native_library.first_try.cache_clear()


@pytest.fixture
def cache_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that we write: a shell script."""

    def script(text):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return script


# Writes its arguments into the file after -o, and counts its calls.
HONEST = 'echo called >> "$0.log"; for last; do :; done; echo "$@" > "$last"'


@pytest.fixture
def copying(compiler, tmp_path):
    """A compiler that gives, at once, what the real one has made."""
    made = build(own_folder() or tmp_path)  # by the real one, where it can be for all tests and processes
    compiler(f'for last; do :; done; cp "{made}" "$last"')
    return made


def test_it_is_built_once(compiler, tmp_path):
    path = compiler(HONEST)
    first = build(tmp_path)
    assert "-march=native" in first.read_text()
    assert "-fopenmp" in first.read_text()
    assert build(tmp_path) == first
    assert path.with_suffix(".log").read_text() == "called\n"
    assert not list(tmp_path.glob("*.tmp"))


def test_another_compiler_or_source_is_another_build(compiler, tmp_path, monkeypatch):
    compiler(HONEST)
    first = build(tmp_path)
    compiler(HONEST + " # newer")
    os.utime(tmp_path / "compiler", (1, 1))
    second = build(tmp_path)
    changed = tmp_path / "decode.cpp"
    changed.write_text("int main;")
    monkeypatch.setattr(native_library, "SOURCE", changed)
    assert len({first, second, build(tmp_path)}) == 3


def test_a_flag_that_the_compiler_does_not_know_is_left_out(compiler, tmp_path):
    compiler(f'case "$*" in *-fopenmp*|*-march*) echo no such flag >&2; exit 1;; esac\n{HONEST}')
    assert "-mcpu=native" in build(tmp_path).read_text()


def test_why_it_can_not_be_built_is_said(compiler, tmp_path, monkeypatch):
    compiler('echo "decode.cpp: this is no C++" >&2; exit 1')
    with pytest.raises(NoNativeCode, match=r"compiler can't compile decode.cpp: decode.cpp: this is no C\+\+"):
        build(tmp_path)
    assert not list(tmp_path.glob("decode*"))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(NoNativeCode, match="no C\\+\\+ compiler found"):
        build(tmp_path)


def test_a_compiler_that_hangs_is_given_up(compiler, cache_home, monkeypatch):
    compiler("exec sleep 60")
    monkeypatch.setattr(native_library, "PATIENCE", 0.2)
    with pytest.raises(NoNativeCode, match="TimeoutExpired"):
        library()


def test_a_file_that_is_no_library_is_named(compiler, cache_home):
    compiler(HONEST)
    with pytest.raises(NoNativeCode, match="OSError"):
        library()


def test_a_process_tries_once(compiler, cache_home):
    path = compiler('echo called >> "$0.log"; exit 1')
    for _ in range(2):
        with pytest.raises(NoNativeCode, match="exit code 1"):
            library()
    assert path.with_suffix(".log").read_text().split() == ["called"] * len(native_library.EXTRAS)


def test_what_others_can_write_is_not_run(cache_home, monkeypatch):
    folder = own_folder()
    assert folder == cache_home / "minigpt"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert own_folder() is None
    folder.chmod(0o755)
    assert own_folder() == folder
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert own_folder() is None


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_without_a_place_to_keep_it_it_is_built_anyway(copying, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert own_folder() is None
    assert library().minigpt_step


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("content", [b"", b"\x7fELF cut off"])
def test_a_library_that_a_power_failure_emptied_is_built_anew(copying, cache_home, content):
    kept = build(own_folder())
    kept.write_bytes(content)
    assert library().minigpt_step
    assert kept.stat().st_size > 10_000


def test_the_bytes_are_on_disk_before_the_name_is(compiler, tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("fsync") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("replace") or replace(*paths))
    compiler(HONEST)
    build(tmp_path)
    assert done[:2] == ["fsync", "replace"]


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_with_a_place_to_keep_it_no_temporary_folder_is_needed(copying, cache_home, monkeypatch):
    library()
    native_library.first_try.cache_clear()

    def none(**_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(native_library.tempfile, "TemporaryDirectory", none)
    assert library().minigpt_step
    native_library.first_try.cache_clear()
    monkeypatch.setattr(native_library, "own_folder", lambda: None)
    with pytest.raises(NoNativeCode, match="No usable temporary directory"):
        library()
