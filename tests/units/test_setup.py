"""The way to the environment: which Python is taken, and what is said when it can't be made. Nothing is installed."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import setup_env

ROOT = Path(__file__).resolve().parents[2]


def put_program(folder, name, text):
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def put_python(folder, name, version):
    """A stand-in that answers the version question and says so when it is handed the work."""
    put_program(folder, name, f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit 0\necho "{name} runs ${{1##*/}}"\n')


def find_python(folder, **environment):
    """Run scripts/setup.sh where only the programs of `folder` exist."""
    put_program(folder, "uname", "#!/bin/sh\necho Linux\n")
    put_program(folder, "dirname", "#!/bin/sh\necho scripts\n")
    words, variables = ["/bin/sh", "scripts/setup.sh"], {"PATH": str(folder), **environment}
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)


def test_a_python_that_fits_is_found(tmp_path):
    assert "no python3 was found" in find_python(tmp_path).stderr
    put_python(tmp_path, "python3", "3.14")
    refused = find_python(tmp_path)
    assert refused.returncode == 2
    assert "needs Python 3.11, 3.12 or 3.13; python3 is Python 3.14:" in refused.stderr
    put_program(tmp_path, "python3.13", "#!/bin/sh\nexit 127\n")  # a pyenv shim of a version not chosen
    put_python(tmp_path, "python3.12", "3.12")
    assert find_python(tmp_path).stdout == "python3.12 runs setup_env.py\n"
    put_python(tmp_path, "python3", "3.11")
    assert find_python(tmp_path).stdout == "python3 runs setup_env.py\n"
    assert "PYTHON=/nowhere/python3 does not run" in find_python(tmp_path, PYTHON="/nowhere/python3").stderr


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a complete environment, as far as the stamp knows."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup_env, "STAMP", tmp_path / ".venv/stamp.json")
    monkeypatch.setattr(setup_env, "LOG", tmp_path / ".venv/log")
    monkeypatch.setattr(setup_env, "venv_runs", lambda: True)
    stamp = {"base": "/usr/bin/python3.12", "root": str(tmp_path), "torch_index": ""}
    setup_env.STAMP.write_text(json.dumps(stamp | {"inputs": setup_env.wanted_inputs("")}))
    return tmp_path


def setup(monkeypatch, *, torch_index=None, fails=None):
    """Run a setup whose processes do nothing: its exit code, and the words that the programs were started with."""
    started = []

    class Pip:
        def __init__(self, command, **options):
            started.append(list(map(str, command[1:])))
            self.stderr, self.returncode = (fails or "").splitlines(keepends=True), int(fails is not None)
            if fails == "Ctrl-C":
                raise KeyboardInterrupt

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def run(command, **options):
        started.append(list(map(str, command[1:])))
        assert "PYTHONPATH" not in options["env"]
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(setup_env.subprocess, "run", run)
    monkeypatch.setattr(setup_env.subprocess, "Popen", Pip)
    monkeypatch.setattr(setup_env.sys, "_base_executable", "/usr/bin/python3.12", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/x")
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    if torch_index is not None:
        monkeypatch.setenv("TORCH_INDEX", torch_index)
    return setup_env.main([]), started


def test_a_complete_environment_is_left_alone_and_a_change_is_installed_into_it(clone, monkeypatch):
    assert setup(monkeypatch) == (0, [])
    (clone / ".venv/kept").touch()
    code, started = setup(monkeypatch, torch_index=setup_env.CPU_INDEX)
    assert code == 0
    assert any(words[-4:] == ["--index-url", setup_env.CPU_INDEX, "--no-deps", "torch"] for words in started)
    assert any(words[-2:] == ["-e", ".[dev,sweep]"] and "constraints.txt" in words for words in started)
    assert setup(monkeypatch) == (0, [])  # and the choice of torch is remembered
    assert (clone / ".venv/kept").exists()


@pytest.mark.parametrize("changed", [{"inputs": ""}, {"root": "/elsewhere"}])
def test_an_environment_that_was_interrupted_or_moved_is_made_anew(clone, monkeypatch, changed):
    (clone / ".venv/old").touch()
    setup_env.STAMP.write_text(json.dumps(setup_env.read_stamp() | changed))
    code, started = setup(monkeypatch)
    assert (code, started[0]) == (0, ["-m", "venv", str(clone / ".venv")])
    assert not (clone / ".venv/old").exists()


def test_an_environment_that_is_not_ours_is_kept(clone, monkeypatch, capsys):
    setup_env.STAMP.rename(clone / ".venv/pyvenv.cfg")
    assert setup(monkeypatch) == (2, [])
    assert "is left alone: move it away" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fails", "code", "sentence"),
    [
        ("Ctrl-C", 130, "`make setup` again completes it"),
        ("ERROR: Temporary failure in name resolution\n", 2, "can't be reached: go online"),
        ("ERROR: [Errno 28] No space left on device\n", 2, "is full: make room"),
        ("ERROR: No matching distribution found for torch<2.14,>=2.11\n", 2, "no torch 2.13 for Python"),
        ("Killed\n", 2, "pip failed"),
    ],
)
def test_what_fails_is_said_in_a_sentence(clone, monkeypatch, capsys, fails, code, sentence):
    (clone / "constraints.txt").write_text("new")
    assert setup(monkeypatch, fails=fails)[0] == code
    assert sentence in capsys.readouterr().err


def test_constraints_are_exact_and_hold_nothing_poisoned():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert pins["torch"].replace(".", "").isdigit()  # no +cpu: each machine takes its own build
    assert pins["lightning"] not in ("2.6.2", "2.6.3")
