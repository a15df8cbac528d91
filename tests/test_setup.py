"""The way to the environment: which Python is taken, what is said when it can't be made. Nothing is installed here."""

import contextlib
import importlib.util
import json
import re
import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts/setup_env.py")
setup_env = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(setup_env)


def put_program(folder, name, text):
    file = folder / name
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def put_python(folder, name, version):
    """A stand-in that answers the version question and says so when it is handed the work."""
    put_program(folder, name, f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit 0\necho "{name} runs ${{1##*/}}"\n')


def find_python(folder, system="Linux", **environment):
    """Run scripts/setup.sh where only the programs of `folder` exist."""
    put_program(folder, "uname", f"#!/bin/sh\necho {system}\n")
    put_program(folder, "dirname", "#!/bin/sh\necho scripts\n")
    return subprocess.run(
        ["/bin/sh", "scripts/setup.sh"],
        cwd=ROOT,
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_python3_is_taken_when_it_fits(tmp_path, version):
    put_python(tmp_path, "python3", version)
    put_python(tmp_path, "python3.13", "3.13")
    done = find_python(tmp_path)
    assert (done.returncode, done.stdout) == (0, "python3 runs setup_env.py\n")


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14"])
def test_another_python_is_found_beside_an_unfit_python3(tmp_path, version):
    put_python(tmp_path, "python3", version)
    put_program(tmp_path, "python3.13", "#!/bin/sh\nexit 127\n")  # a pyenv shim of a version not chosen
    put_python(tmp_path, "python3.12", "3.12")
    assert find_python(tmp_path).stdout == "python3.12 runs setup_env.py\n"


@pytest.mark.parametrize("version", ["2.7", "3.1", "3.10", "3.14"])
def test_an_unfit_python_alone_is_named_in_one_sentence(tmp_path, version):
    put_python(tmp_path, "python3", version)
    refused = find_python(tmp_path)
    assert refused.returncode == 2
    assert f"needs Python 3.11, 3.12 or 3.13; python3 is Python {version}:" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_no_python_at_all(tmp_path):
    refused = find_python(tmp_path)
    assert refused.returncode == 2
    assert "no python3 was found" in refused.stderr


def test_a_named_python_is_the_only_one_asked(tmp_path):
    put_python(tmp_path, "python3", "3.12")
    put_python(tmp_path, "old python", "3.10")
    refused = find_python(tmp_path, PYTHON=str(tmp_path / "old python"))
    assert refused.returncode == 2
    assert "old python is Python 3.10" in refused.stderr
    assert "PYTHON=/nowhere/python3 does not run" in find_python(tmp_path, PYTHON="/nowhere/python3").stderr


def test_windows_is_sent_to_wsl(tmp_path):
    put_python(tmp_path, "python3", "3.12")
    refused = find_python(tmp_path, system="MINGW64_NT-10.0")
    assert refused.returncode == 2
    assert "WSL" in refused.stderr


def test_help_and_unknown_arguments_are_answered_and_nothing_is_made(clone, capsys):
    assert setup_env.main(["--help"]) == 0
    assert "TORCH_INDEX" in capsys.readouterr().out
    assert setup_env.main(["--clean"]) == 2
    assert "takes no arguments, got '--clean'. Type: make setup" in capsys.readouterr().out
    assert sorted(path.name for path in clone.iterdir()) == [".venv", "constraints.txt", "pyproject.toml"]
    for argument, code in (("--help", 0), ("--clean", 2)):
        done = subprocess.run(["sh", "scripts/setup.sh", argument], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, "Type: make setup" in done.stderr) == (code, True)


@pytest.mark.parametrize("kind", ["a link", "a link that leads nowhere", "another environment", "a file"])
def test_an_environment_that_is_not_ours_is_refused_and_kept(clone, tmp_path, capsys, kind):
    shutil.rmtree(clone / ".venv")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "pyvenv.cfg").write_text("home = /usr/bin\n")
    if "link" in kind:
        (clone / ".venv").symlink_to(precious if kind == "a link" else tmp_path / "nowhere")
    elif kind == "a file":
        (clone / ".venv").write_text("mine")
    else:
        precious.rename(clone / ".venv")
        precious = clone / ".venv"
    assert setup_env.main([]) == 2
    said = capsys.readouterr().err
    assert "is left alone: move it away" in said
    assert ("is a link to" in said) == ("link" in kind)
    if kind != "a file":
        assert (precious / "pyvenv.cfg").is_file()
    assert len(list(precious.iterdir())) == 1


RETRYING = (
    "WARNING: Retrying (Retry(total=4, connect=None, redirect=None, status=None)) after connection broken by "
    "'NewConnectionError(\"HTTPSConnection(host='pypi.org', port=443): Failed to establish a new connection: "
    "[Errno -3] Temporary failure in name resolution\")': /simple/setuptools/\n"
)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (RETRYING * 5 + "ERROR: No matching distribution found for torch<2.14,>=2.11\n", "can't be reached: go online"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            "is full: make room",
        ),
        ("ERROR: No matching distribution found for torch<2.14,>=2.11\n", "no torch 2.13 for Python"),
        (
            "ERROR: first\nhint: x\nERROR: No matching distribution found for torchmetrics\n",
            "found for torchmetrics; its errors are in",
        ),
        ("Killed\n", "pip failed (it said no reason"),
        ("", "pip failed"),
    ],
)
def test_a_failed_pip_becomes_one_sentence(output, sentence):
    told = setup_env.explain(output)
    assert sentence in told
    assert "\n" not in told


def test_announcement_warns_of_cuda_on_linux_only(monkeypatch):
    monkeypatch.setattr(setup_env.sys, "platform", "linux")
    assert "about 3 GB" in setup_env.announcement("")
    assert f"TORCH_INDEX={setup_env.CPU_INDEX}" in setup_env.announcement("")
    assert "3 GB" not in setup_env.announcement(setup_env.CPU_INDEX)
    monkeypatch.setattr(setup_env.sys, "platform", "darwin")
    assert "About 0.4 GB" in setup_env.announcement("")
    assert "3 GB" not in setup_env.announcement("")
    assert "from https://host/simple." in setup_env.announcement("https://me:p@ss@host/simple")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a complete environment, as far as the stamp knows."""
    tmp_path = tmp_path / "clone"
    tmp_path.mkdir()
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


def setup(clone, monkeypatch, *, python=None, torch_index=None, fails=None, newer_pip=True):
    """Run a setup whose processes do nothing: its exit code, and which programs were started with which words."""
    started = []

    def run(command, **options):
        started.append([Path(command[0]).name, *map(str, command[1:])])
        assert not {"PYTHONPATH", "PIP_USER", "PIP_CONSTRAINT"} & options["env"].keys()
        return subprocess.CompletedProcess(command, int(command[-1] == "pip" and not newer_pip))

    @contextlib.contextmanager
    def pip(command, **options):
        run(command, **options)
        if fails == "Ctrl-C":
            raise KeyboardInterrupt
        yield SimpleNamespace(stderr=fails and fails.splitlines(keepends=True), returncode=int(fails is not None))

    monkeypatch.setattr(setup_env.subprocess, "run", run)
    monkeypatch.setattr(setup_env.subprocess, "Popen", pip)
    monkeypatch.setattr(setup_env.sys, "_base_executable", python or "/usr/bin/python3.12", raising=False)
    unwanted = (("PIP_USER", "1"), ("PYTHONPATH", "/x"), ("PIP_CONSTRAINT", "/etc/pip/constraint.txt"))
    for name, value in (("PYTHON", python), ("TORCH_INDEX", torch_index), *unwanted):
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    return setup_env.main([]), [words[1:] for words in started]


def test_a_complete_environment_is_left_alone(clone, monkeypatch, capsys):
    assert setup(clone, monkeypatch) == (0, [])
    assert capsys.readouterr().out == ""


def test_another_torch_or_requirement_is_installed_into_what_is_there(clone, monkeypatch):
    (clone / ".venv/kept").touch()
    code, (pip, torch, project, compiling) = setup(clone, monkeypatch, torch_index=setup_env.CPU_INDEX)
    assert (code, torch[-4:]) == (0, ["--index-url", setup_env.CPU_INDEX, "--no-deps", "torch"])
    assert (pip[-1], project[-2:]) == ("pip", ["-e", ".[dev,sweep]"])
    assert all(words[:3] == ["-m", "pip", "install"] and "constraints.txt" in words for words in (pip, torch, project))
    assert compiling[:2] == ["-m", "compileall"]
    assert setup(clone, monkeypatch) == (0, [])  # and the choice of torch is remembered
    (clone / "constraints.txt").write_text("new")
    assert len(setup(clone, monkeypatch)[1]) == 4
    assert (clone / ".venv/kept").exists()


def test_an_index_without_the_newer_pip_is_no_fault(clone, monkeypatch):
    (clone / "constraints.txt").write_text("new")
    code, (_, project, _) = setup(clone, monkeypatch, newer_pip=False)
    assert (code, project[-1]) == (0, ".[dev,sweep]")
    assert "--build-constraint" not in project  # which an old pip does not know


@pytest.mark.parametrize("reason", ["interrupted", "moved", "torn", "broken", "another Python"])
def test_an_environment_that_can_not_be_built_upon_is_made_anew(clone, monkeypatch, reason):
    (clone / ".venv/old").touch()
    stamp = setup_env.read_stamp()
    if reason == "torn":
        setup_env.STAMP.write_text('{"inputs": "ab')
    else:
        changed = {"interrupted": {"inputs": ""}, "moved": {"root": "/elsewhere"}}.get(reason, {})
        setup_env.STAMP.write_text(json.dumps(stamp | changed))
    if reason == "broken":
        monkeypatch.setattr(setup_env, "venv_runs", lambda: False)
    python = "/usr/bin/python3.13" if reason == "another Python" else None
    code, started = setup(clone, monkeypatch, python=python)
    assert (code, started[0]) == (0, ["-m", "venv", str(clone / ".venv")])
    assert not (clone / ".venv/old").exists()


def test_a_stop_half_way_leaves_its_mark_and_the_next_setup_begins_anew(clone, monkeypatch, capsys):
    (clone / "constraints.txt").write_text("new")
    assert setup(clone, monkeypatch, fails="Ctrl-C")[0] == 130
    assert "`make setup` again completes it" in capsys.readouterr().err
    assert setup(clone, monkeypatch)[1][0][:2] == ["-m", "venv"]


def test_an_interrupt_that_reached_setup_alone_ends_pip_too(monkeypatch):
    killed = []

    def stderr():
        yield "WARNING: slow\n"
        raise KeyboardInterrupt

    def wait(seconds):
        raise subprocess.TimeoutExpired("pip", seconds)

    process = SimpleNamespace(stderr=stderr(), wait=wait, kill=lambda: killed.append(True))
    monkeypatch.setattr(setup_env.subprocess, "Popen", lambda *_, **__: contextlib.nullcontext(process))
    with pytest.raises(KeyboardInterrupt):
        setup_env.pip_install("torch", environment={})
    assert killed == [True]


def test_a_full_disk_is_said_in_a_sentence_though_nothing_can_be_written(clone, monkeypatch, capsys):
    (clone / "constraints.txt").write_text("new")
    monkeypatch.setattr(setup_env, "LOG", clone / "nowhere/log")
    assert setup(clone, monkeypatch, fails="ERROR: [Errno 28] No space left on device\n")[0] == 2
    assert "is full: make room" in capsys.readouterr().err
    shutil.rmtree(clone / ".venv")
    monkeypatch.setattr(setup_env, "STAMP", clone / "nowhere/stamp")
    assert setup(clone, monkeypatch)[0] == 2
    assert f"make setup: {clone}/nowhere/stamp: No such file or directory. Mend that" in capsys.readouterr().err


def test_what_can_not_be_made_is_said_in_a_sentence(clone, monkeypatch, capsys):
    (clone / "constraints.txt").write_text("new")
    assert setup(clone, monkeypatch, fails=RETRYING)[0] == 2
    said = capsys.readouterr().err
    assert said.startswith(RETRYING)
    assert "make setup: the package index can't be reached" in said
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda _: SimpleNamespace(free=1.1e9))
    assert setup(clone, monkeypatch)[0] == 2
    assert re.search(r"1\.1 GB free .* about 2 GB needed", capsys.readouterr().err)
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda _: SimpleNamespace(free=1.1e11))
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(setup_env.subprocess, "run", lambda *_, **__: failed)
    assert setup_env.main([]) == 2
    assert re.search(r"sudo apt install python3\.\d+-venv", capsys.readouterr().err)


def test_constraints_are_exact_and_hold_nothing_poisoned():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert pins["torch"].replace(".", "").isdigit()  # no +cpu: each machine takes its own build
    assert pins["lightning"] not in ("2.6.2", "2.6.3")
    assert pins["lightning"] == pins["pytorch-lightning"]


def test_make_help_names_every_target():
    helped = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in helped.splitlines()][:4] == ["help", "setup", "demo", "test"]


def test_targets_stop_at_a_refused_python(tmp_path):
    put_python(tmp_path, "python3.9", "3.9")
    refused = subprocess.run(
        ["make", "-C", ROOT, "demo", f"PYTHON={tmp_path}/python3.9"], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "python3.9 is Python 3.9" in refused.stderr


@pytest.mark.parametrize(
    ("closing", "outcome"), [("31 passed in 1.28s", 0), ("1 failed, 30 passed, 2 warnings in 62.58s (0:01:02)", 2)]
)
def test_ci_ends_with_pytests_closing_line_and_its_outcome(tmp_path, closing, outcome):
    put_program(tmp_path, "make", f'#!/bin/sh\necho "[$*]"; echo "{closing}"; echo "make: noise" >&2; exit {outcome}\n')
    done = subprocess.run(
        [ROOT / ".ci/run"], cwd="/", env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == outcome
    assert done.stdout.startswith("[test]\n")
    assert done.stdout.splitlines()[-1] == closing
