"""The screen: what it can't take ends no run and hides nothing that comes later."""

import errno
import io
import os
import subprocess
import sys

import pytest

from minigpt.faults import INTERRUPTED
from minigpt.ranks.output import LastingStream, lasting_output

PROGRAM = """
import sys
from minigpt.faults import run_script
from minigpt.ranks.output import lasting_output

def main(arguments):
    with lasting_output():
        print("one", flush=True)
        print("zażółć", flush=True)
        print("two", flush=True)
        open(arguments[0], "w").write("done")

run_script(main)
"""


def start(tmp_path, redirections: str, **variables: str) -> subprocess.CompletedProcess:
    command = f'"$0" -c "$1" "$2" {redirections}'
    words = ["sh", "-c", command, sys.executable, PROGRAM, str(tmp_path / "done")]
    return subprocess.run(words, capture_output=True, env=os.environ | variables, timeout=60)


def test_a_character_that_a_screen_can_not_show_is_a_question_mark_and_what_follows_is_shown(tmp_path):
    done = start(tmp_path, "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, b"one\nza????\ntwo\n")


def test_a_process_without_stdout_runs(tmp_path):
    for redirections in (">&-", "<&- >&- 2>&-"):
        done = start(tmp_path, redirections)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (tmp_path / "done").read_text() == "done"  # not what was printed
        (tmp_path / "done").unlink()


def test_from_python_too(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with lasting_output():
        print("nowhere", flush=True)


def test_a_log_on_a_disk_that_is_full_for_a_while_goes_on():
    class Disk(io.StringIO):
        full = False

        def flush(self):
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def fileno(self):
            raise AssertionError("it is not to be replaced")

    disk = Disk()
    stream = LastingStream(disk)
    print("one", file=stream, flush=True)
    disk.full = True
    print("two", file=stream, flush=True)
    disk.full = False
    print("three", file=stream, flush=True)
    assert disk.getvalue().splitlines()[-1] == "three"


def test_one_that_stays_full_changes_no_exit_code(tmp_path):
    assert start(tmp_path, ">/dev/full").returncode == 0


@pytest.mark.parametrize("length", [1, 100_000])
def test_a_command_whose_output_meets_a_full_disk_says_so(length):
    program = f"from minigpt.faults import run_script; run_script(lambda _: print('x' * {length}))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (4, b"Error: the output can't be written: No space left on device\n")


def test_who_is_told_to_end_does_not_wait_for_a_screen_that_stands_still():
    program = """
import os, signal
from minigpt.faults import StoppedEarly, run_script

def main(arguments):
    os.set_blocking(1, False)
    while True:
        try:
            os.write(1, b"x")
        except BlockingIOError:
            break
    os.set_blocking(1, True)
    raise StoppedEarly(signal.SIGINT)

run_script(main)
"""
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=writer, stderr=writer)
    try:
        assert process.wait(60) == INTERRUPTED
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)
