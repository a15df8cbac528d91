"""Commands as they are started and typed: from a script, from the installed command, with and without activation."""

import sys
from pathlib import Path

import pytest

from minigpt.invocation import PACKAGE, command_line, typed, typed_words


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A project folder with an environment that is not active and holds the command."""
    folder = tmp_path / "my project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "minigpt"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path / "my project")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sys, "argv", [str(folder / "minigpt"), "train", "seed=1"])
    return folder


def test_the_command_is_typed_with_its_path_until_the_environment_is_active(environment, monkeypatch):
    assert typed("sample") == ".venv/bin/minigpt sample"
    monkeypatch.chdir(environment)
    assert typed("sample") == "./minigpt sample"
    (environment / "folder").mkdir()
    monkeypatch.chdir(environment / "folder")
    assert typed("sample") == f"'{environment}/minigpt' sample"
    monkeypatch.setenv("PATH", str(environment))
    assert typed("sample") == "minigpt sample"


def test_an_environment_without_the_command_names_the_module(environment, monkeypatch):
    (environment / "minigpt").unlink()
    assert typed("verify-resume") == ".venv/bin/python -m minigpt verify-resume"


@pytest.mark.parametrize(
    ("command", "script"), [("sample", "sample"), ("prepare", "prepare_data"), ("verify-resume", "verify_resume")]
)
def test_a_script_names_the_other_scripts(environment, monkeypatch, command, script):
    monkeypatch.chdir(PACKAGE.parent)
    monkeypatch.setattr(sys, "argv", ["scripts/train.py"])
    monkeypatch.setenv("PATH", str(environment))
    assert typed(command) == f"python scripts/{script}.py"
    assert (PACKAGE.parent / "scripts" / f"{script}.py").is_file()


def test_the_record_of_a_run_holds_the_command_as_it_was_typed(environment, monkeypatch):
    assert typed_words() == ["minigpt", "train", "seed=1"]
    monkeypatch.setattr(sys, "argv", [str(PACKAGE / "__main__.py"), "train"])
    assert typed_words() == ["python", "-m", "minigpt", "train"]
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "seed=1"])
    assert typed_words() == ["python", "scripts/train.py", "seed=1"]
    monkeypatch.setattr(sys, "argv", [command_line("train")[1], "train"])
    assert typed_words() == ["minigpt", "train"]
    assert Path(command_line("train")[1], "__main__.py").is_file()
