"""Every command answers --help, a mistake is one sentence with the closest name, and exit codes say what happened."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt import faults
from minigpt.cli import COMMANDS, main
from minigpt.invocation import PACKAGE, command_line, typed, typed_words

ROOT = Path(__file__).parents[2]


@pytest.fixture
def minigpt(tmp_path, monkeypatch, capsys):
    """Runs `minigpt WORDS` in this process; gives exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["minigpt", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


def test_help_lists_the_commands(minigpt):
    code, out, err = minigpt()
    assert (code, err, out) == (0, "", minigpt("--help")[1])
    for name in COMMANDS:
        (line,) = [line for line in out.splitlines() if line.startswith(f"  {name} ")]
        assert len(line.split()) > 3
        assert len(line) <= 100, line
    assert minigpt("--version")[1].startswith("minigpt 0.")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_help_and_writes_nothing(name, tmp_path, minigpt):
    code, out, err = minigpt(name, "--help")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) > 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["train", "sample", "sweep", "prepare_data"])
def test_the_scripts_are_the_commands(script, monkeypatch, capsys):
    file = str(ROOT / "scripts" / f"{script}.py")
    monkeypatch.setattr(sys, "argv", [file, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(file, run_name="__main__")
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert f"minigpt {script.removesuffix('_data')}" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "Error: minigpt has no command 'trian'. Did you mean minigpt train?\n"),
        (["verify_resume"], "Did you mean minigpt verify-resume?"),
        (["qqq"], "`minigpt --help` lists them"),
        (["report", "run.dir="], "run.dir is empty"),
        (["verify-resume", "kils=3"], "No setting 'kils'. Did you mean 'kills'?"),
        (["verify-resume", "modle=gpt2"], "No setting 'modle'. Did you mean 'model'?"),
        (["sample", "--prompt", "x"], "not how a setting is written"),
        (["sample", "checkpoint=nowhere"], "checkpoint='nowhere' does not exist"),
        (["sample", "nowhere"], "checkpoint='nowhere' does not exist"),
        (["report"], "no run in runs/"),
        (["plan", "data.source=."], "would ignore data.source and data.val_source. To train on your text, add"),
        (["train", "trainer.nodes=2", "trainer=ddp", "batch_tokens=65536"], "torchrun --nnodes=2"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_written(tmp_path, minigpt, words, sentence):
    code, _, err = minigpt(*words)
    assert (code, sentence in err, "Traceback" in err) == (2, True, False), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (faults.UserFault("one", "two"), 2, "2 errors:\n- one\n- two\n"),
        (faults.NoUsableCheckpoint("none"), 3, "Error: none\n"),
        (faults.StorageFailure("full"), 4, "Error: full\n"),
        (OSError(28, "No space left on device", "file"), 4, "Error: file can't be written: No space left on device\n"),
        (PermissionError(13, "Permission denied", "a.txt"), 2, "Error: [Errno 13] Permission denied: 'a.txt'. Give a"),
        (faults.NonFiniteTraining("NaN"), 5, "Error: NaN\n"),
        (faults.StoppedEarly(15), 75, "Stopped by SIGTERM with no step begun: nothing is lost"),
        (KeyboardInterrupt(), 130, "Stopped at once.\n"),
        (ModuleNotFoundError("no", name="optuna.samplers"), 2, "Error: the Python package 'optuna' is missing"),
        (RuntimeError("bug \x1b[2J"), 1, "Traceback"),
    ],
)
def test_each_end_has_its_exit_code(monkeypatch, minigpt, error, code, said):
    def fail(arguments):
        raise error

    monkeypatch.setitem(COMMANDS, "runs", ("", fail))
    end, _, err = minigpt("runs")
    assert end == code
    assert err.startswith(said)
    assert "\x1b" not in err


def test_a_python_without_the_packages_is_told_what_to_do(tmp_path):
    command = [sys.executable, "-I", "-S", str(ROOT / "scripts" / "train.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "Run `make setup`" in done.stderr) == (2, True)


def test_what_make_setup_does_not_install_is_named_whole():
    _, sentence = faults.explain(ModuleNotFoundError("no", name="uvicorn"))
    assert sentence.endswith("-m pip install fastapi uvicorn")
    assert "make setup" not in sentence


def test_a_reader_that_is_gone_ends_a_command_quietly(tmp_path):
    process = subprocess.Popen(
        [*command_line("train"), "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141  # as of any command: 128 + SIGPIPE


def test_commands_are_named_as_they_are_typed(tmp_path, monkeypatch):
    folder = tmp_path / "my project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "minigpt"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path / "my project")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    assert typed("sample") == ".venv/bin/minigpt sample"
    monkeypatch.chdir(tmp_path)
    assert typed("sample") == "'my project/.venv/bin/minigpt' sample"
    monkeypatch.setenv("PATH", str(folder))  # the environment is active
    assert typed("sample") == "minigpt sample"
    (folder / "minigpt").unlink()
    assert typed("verify-resume") == "python -m minigpt verify-resume"
    for started, words in (
        (folder / "minigpt", ["minigpt"]),
        (PACKAGE / "__main__.py", ["python", "-m", "minigpt"]),
        ("scripts/train.py", ["python", "scripts/train.py"]),
    ):
        monkeypatch.setattr(sys, "argv", [str(started), "seed=1"])
        assert typed_words() == [*words, "seed=1"]
