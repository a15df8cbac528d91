"""A whole process: faults end with exit code 2, fast, and leave no trace."""

import os
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


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_faults_end_the_process_at_once(tmp_path):
    begun = os.times()
    done = run("train.py", "trainer.max_step=5", "optimizer.lr=abc", "model.n_head=3", "modle=gpt2", folder=tmp_path)
    ended = os.times()
    seconds = ended.children_user + ended.children_system - begun.children_user - begun.children_system
    assert done.returncode == USER_FAULT
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "4 errors:"
    assert lines[1] == "- No setting 'trainer.max_step'. Did you mean 'trainer.max_steps'?"
    assert len(lines) == 5
    assert seconds < 3  # of a CPU: other work on the machine does not count
    assert list(tmp_path.iterdir()) == []


def test_composing_imports_nothing_heavy(tmp_path):
    check = (
        "import sys; from minigpt.config.compose import compose; compose('train', ['experiment=demo']);"
        "print(*{'torch', 'lightning', 'numpy', 'tiktoken', 'wandb', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_a_command_without_files_does_not_wait_for_hydra(tmp_path):
    check = (
        "import sys; from minigpt.config.compose import compose; compose('sample', ['checkpoint=.']);"
        "print(*{'hydra', 'omegaconf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("script", ["train.py", "sample.py", "prepare_data.py"])
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
