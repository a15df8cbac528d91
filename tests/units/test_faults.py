"""Every end of a command has its exit code and its words."""

import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.faults import (
    BUG,
    FINISHED,
    INTERRUPTED,
    USER_FAULT,
    NoUsableCheckpoint,
    UserFault,
    run_script,
    unfit_python,
)

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("script", ["train.py", "sample.py"])
def test_a_python_without_minigpt_is_told_what_to_do(script, tmp_path):
    command = [sys.executable, "-I", "-S", str(SCRIPTS / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == USER_FAULT
    assert "Run `make setup`" in done.stderr
    assert "Traceback" not in done.stderr


def raiser(error: BaseException):
    def main(arguments: list[str]) -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code", "says"),
    [
        (lambda arguments: None, FINISHED, ""),
        (lambda arguments: 75, 75, ""),
        (raiser(UserFault("one thing")), USER_FAULT, "Error: one thing\n"),
        (raiser(UserFault("one", "two")), USER_FAULT, "2 errors:\n- one\n- two\n"),
        (raiser(NoUsableCheckpoint("none verifies")), 3, "Error: none verifies\n"),
        (raiser(UserFault("a\x1b]0;b\x07\x9bc")), USER_FAULT, "Error: a␛]0;b␇\ufffdc\n"),
        (raiser(KeyboardInterrupt()), INTERRUPTED, "Stopped at once.\n"),
        (raiser(ModuleNotFoundError("x", name="torch.nn")), USER_FAULT, "Error: the Python package 'torch' is missing"),
        (raiser(ModuleNotFoundError("x", name="minigpt.gone")), BUG, "Traceback"),
        (raiser(ZeroDivisionError("a bug")), BUG, "Traceback"),
    ],
)
def test_every_end_has_its_exit_code(main, code, says, capsys):
    with pytest.raises(SystemExit) as end:
        run_script(main)
    assert end.value.code == code
    assert capsys.readouterr().err.startswith(says)


@pytest.mark.parametrize(
    ("version", "platform", "says"),
    [
        ((3, 11, 0), "linux", ""),
        ((3, 13, 9), "darwin", ""),
        ((3, 10, 12), "linux", "minigpt needs Python 3.11 to 3.13, this is Python 3.10 ("),
        ((3, 14, 0), "darwin", "minigpt needs Python 3.11 to 3.13, this is Python 3.14 ("),
        ((3, 12, 0), "win32", "minigpt runs on Linux, macOS, and on Windows through WSL."),
    ],
)
def test_unfit_pythons_are_named(version, platform, says):
    found = unfit_python(version, platform)
    assert found.startswith(says)
    assert bool(found) == bool(says)
