"""The way to the environment: which Python is taken, what is said when it can't be made. Nothing is installed here."""

import importlib.util
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
            "found for torchmetrics (all",
        ),
        ("Killed\n", "pip failed: Killed"),
        ("", "pip failed"),
    ],
)
def test_a_failed_pip_becomes_one_sentence(output, sentence):
    told = setup_env.explain(output)
    assert sentence in told
    assert "\n" not in told


def test_progress_shows_the_big_downloads_only():
    def news(line):
        return list(setup_env.progress(line))

    torch = "  Downloading https://x.org/packages/ab/torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (527.4 MB)\n"
    assert news(torch) == ["downloading torch-2.13.0 (527.4 MB)"]
    assert news("Downloading numpy-2.4.6-cp312-cp312-linux_x86_64.whl.metadata (62 kB)\n") == []
    assert news("Downloading tqdm-4.70.1-py3-none-any.whl (0.1 MB)\n") == []
    assert news("Installing collected packages: " + ", ".join("abcdefgh")) == [
        "installing 8 packages: half a minute or more"
    ]
    assert news(RETRYING) == ["no answer from the package index: trying again for a while"]


def test_announcement_warns_of_cuda_on_linux_only(monkeypatch):
    monkeypatch.setattr(setup_env.sys, "platform", "linux")
    assert "about 3 GB" in setup_env.announcement("", "")
    assert f"TORCH_INDEX={setup_env.CPU_INDEX}" in setup_env.announcement("", "")
    assert "find-links '/wheels'" in setup_env.announcement("", "find-links '/wheels'")
    assert "3 GB" not in setup_env.announcement(setup_env.CPU_INDEX, "")
    monkeypatch.setattr(setup_env.sys, "platform", "darwin")
    assert "About 0.4 GB" in setup_env.announcement("", "")
    assert "3 GB" not in setup_env.announcement("", "")


def test_machines_without_a_torch_are_refused_before_the_download(monkeypatch):
    monkeypatch.setattr(setup_env.sys, "platform", "darwin")
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "x86_64")
    with pytest.raises(setup_env.SetupError, match="Intel Macs"):
        setup_env.refuse_hopeless_machines("")
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(setup_env, "venv_runs", lambda: False)
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda _: SimpleNamespace(free=1.1e9))
    with pytest.raises(setup_env.SetupError, match=r"1\.1 GB free .* about 2 GB needed"):
        setup_env.refuse_hopeless_machines("")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a finished environment, as far as the stamp knows."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup_env, "STAMP", tmp_path / ".venv/stamp.json")
    monkeypatch.setattr(setup_env, "venv_runs", lambda: True)
    stamp = {"base": "/usr/bin/python3.12", "root": str(tmp_path), "torch_index": ""}
    setup_env.write_stamp(stamp | {"inputs": setup_env.wanted_inputs("")})
    return tmp_path


def test_a_finished_environment_is_left_alone(clone):
    stamp = setup_env.read_stamp()
    assert setup_env.is_current(stamp, None, "")
    assert setup_env.is_current(stamp, "/usr/bin/python3.12", "")
    assert not setup_env.is_current(stamp, "/usr/bin/python3.13", "")
    assert not setup_env.is_current(stamp, None, setup_env.CPU_INDEX)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_is_noticed_and_built_upon(clone, name):
    (clone / name).write_text("new")
    stamp = setup_env.read_stamp()
    assert not setup_env.is_current(stamp, None, "")
    assert not setup_env.must_start_over(stamp, None)


def test_a_torn_moved_interrupted_or_broken_environment_is_made_anew(clone, monkeypatch):
    stamp = setup_env.read_stamp()
    assert setup_env.must_start_over(stamp | {"inputs": ""}, None)
    assert setup_env.must_start_over(stamp | {"root": "/elsewhere"}, None)
    assert setup_env.must_start_over(stamp, "/usr/bin/python3.13")
    setup_env.STAMP.write_text('{"inputs": "ab')
    assert setup_env.read_stamp() == {}
    monkeypatch.setattr(setup_env, "venv_runs", lambda: False)
    assert setup_env.must_start_over(stamp, None)


def test_an_interrupted_install_leaves_its_mark(clone, monkeypatch):
    (clone / "constraints.txt").write_text("new")

    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup_env, "pip", stopped)
    monkeypatch.delenv("PYTHON", raising=False)
    assert setup_env.main() == 130
    assert setup_env.must_start_over(setup_env.read_stamp(), None)


def test_pip_is_kept_from_installing_elsewhere(monkeypatch):
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example")
    kept = setup_env.clean_env()
    assert "PIP_USER" not in kept
    assert "PYTHONPATH" not in kept
    assert kept["PIP_INDEX_URL"] == "https://mirror.example"


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
