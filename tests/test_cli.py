"""The command `minigpt` as it is typed, from a checkout and from an installed wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]


def minigpt(*words, folder, **environment):
    command = [sys.executable, "-m", "minigpt", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=200, env={**os.environ, **environment}
    )


def test_alone_or_asked_for_help_it_lists_the_commands(tmp_path):
    alone, helped = minigpt(folder=tmp_path), minigpt("--help", folder=tmp_path)
    assert (alone.returncode, alone.stderr, alone.stdout) == (0, "", helped.stdout)
    lines = helped.stdout.splitlines()
    for name in COMMANDS:
        (line,) = [each for each in lines if each.startswith(f"  {name} ")]
        assert len(line.split()) > 3, line
        assert len(line) <= 100, line


def test_an_unknown_command_names_the_nearest(tmp_path):
    refused = minigpt("trian", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "Error: minigpt has no command 'trian'. Did you mean minigpt train?\n"
    assert "Did you mean minigpt verify-resume?" in minigpt("verify_resume", folder=tmp_path).stderr
    assert "`minigpt --help` lists them" in minigpt("qqq", folder=tmp_path).stderr


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Runs `minigpt WORDS` in this process; gives exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["minigpt", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_help_and_has_its_script(name, tmp_path, typed):
    script = ROOT / "scripts" / f"{ {'prepare': 'prepare_data'}.get(name, name).replace('-', '_') }.py"
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    for code, out, err in (typed(name, "--help"), (done.returncode, done.stdout, done.stderr)):
        assert (code, err) == (0, "")
        assert len(out.splitlines()) > 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "run.dir="], "run.dir is missing"),
        (["verify-resume", "kills=0"], "kills must be at least 1 and at most 10000, got 0"),
        (["verify-resume", "kils=3"], "No setting 'kils'. Did you mean 'kills'?"),
        (["verify-resume", "modle=gpt2"], "No setting 'modle'. Did you mean 'model'?"),
        (["sample", "--prompt", "x"], "not how a setting is written"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(tmp_path, typed, arguments, sentence):
    code, _, said = typed(*arguments)
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
