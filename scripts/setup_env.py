"""Make .venv/ with pip and an editable install of minigpt: what `make setup` runs. It is quick when nothing changed.

It takes no arguments. Variables: PYTHON, the interpreter to build on; TORCH_INDEX, where to take torch (and only torch)
from, like https://download.pytorch.org/whl/cpu.

An environment that was interrupted half-way, moved, or built on another interpreter is made anew; one that
`make setup` did not make is never touched. Standard library only: this runs before there is an environment.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "minigpt-setup.json"  # written first: with inputs "" the environment is not complete
LOG = VENV / "minigpt-setup.log"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_GB = 2.0  # measured: 1.4 GB on Linux with the CPU build of torch, and room for pip's temporary files
# Variables that would send packages elsewhere than into .venv/, or contradict constraints.txt (NVIDIA's containers).
UNWANTED = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_USER"}
UNWANTED |= {"PIP_REQUIRE_VIRTUALENV", "PIP_CONSTRAINT"}
SELDOM_LOADED = "/tests?/|/torch/testing/|/site-packages/(mypy|mypyc|networkx|pip|pygments|setuptools)/"
NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Connection reset by peer",
    "ProxyError",
)


class SetupError(RuntimeError):
    """A fault that the user can repair; its text is the sentence to print."""


def main(arguments: list[str]) -> int:
    """Bring .venv/ to the state that pyproject.toml and constraints.txt describe."""
    if arguments:
        helped = arguments[0] in ("--help", "-h")
        print(__doc__ if helped else f"setup_env.py takes no arguments, got {arguments[0]!r}. Type: make setup")
        return 0 if helped else 2
    try:
        stamp = read_stamp()
        base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        torch_index = os.environ.get("TORCH_INDEX", stamp.get("torch_index", ""))
        anew = must_start_over(stamp, base if os.environ.get("PYTHON") else None)
        if anew or stamp.get("inputs") != wanted_inputs(torch_index):
            install(base if anew else stamp["base"], torch_index, anew=anew)
    except SetupError as fault:
        print(f"make setup: {fault}", file=sys.stderr)
        return 2
    except OSError as fault:
        print(f"make setup: {fault.filename}: {fault.strerror}. Mend that, then `make setup` again.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. `make setup` again completes it.", file=sys.stderr)
        return 130
    return 0


def read_stamp() -> dict[str, str]:
    """Return what the last setup has written into .venv/; empty if there was none.

    Raises:
        SetupError: .venv is a link, or something that `make setup` did not make.
    """
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        stamp = None
    is_own = isinstance(stamp, dict) or STAMP.is_file()  # a damaged stamp is ours, too
    if VENV.is_symlink() or (os.path.lexists(VENV) and not is_own and not (VENV.is_dir() and not any(VENV.iterdir()))):
        what = f"a link to {os.readlink(VENV)}" if VENV.is_symlink() else "not an environment that `make setup` made"
        raise SetupError(
            f"{VENV} is {what}, so it is left alone: move it away (mv .venv ...), then `make setup` again."
        )
    return stamp if isinstance(stamp, dict) else {}


def wanted_inputs(torch_index: str) -> str:
    """Return a hash of all that the environment depends on; the stamp of a complete environment holds it."""
    files = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*files, torch_index.encode()])).hexdigest()


def must_start_over(stamp: dict[str, str], base: str | None) -> bool:
    """Return whether .venv/ must be made anew.

    It must if it was interrupted half-way, is built on another interpreter than `base`, was moved or copied here (paths
    are written into its programs), or does not run.
    """
    other_base = base is not None and stamp.get("base") != base
    return stamp.get("inputs", "") == "" or other_base or stamp.get("root") != str(ROOT) or not venv_runs()


def venv_runs() -> bool:
    """Return whether .venv/'s Python starts (an upgrade may have removed its base) and has a version that fits."""
    probe = "import pip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"
    try:
        return subprocess.run([VENV / "bin/python", "-c", probe], capture_output=True).returncode == 0
    except OSError:
        return False


def install(base: str, torch_index: str, *, anew: bool) -> None:
    """Make .venv/, or bring it up to date, and install the project into it.

    Raises:
        SetupError: something is missing; the sentence says what.
    """
    environment = {key: value for key, value in os.environ.items() if key not in UNWANTED}
    if anew:
        free_gb = shutil.disk_usage(ROOT).free / 1e9
        if free_gb < DISK_GB:
            raise SetupError(f"{free_gb:.1f} GB free on the disk of {ROOT}, about {DISK_GB:.0f} GB needed: make room.")
        print(announcement(torch_index), flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        VENV.mkdir(exist_ok=True)
    stamp = {"inputs": "", "base": base, "root": str(ROOT), "torch_index": torch_index}
    STAMP.write_text(json.dumps(stamp))
    if anew:
        created = subprocess.run([base, "-m", "venv", VENV], capture_output=True, text=True, env=environment)
        if created.returncode:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise SetupError(
                f"this Python {version} can't make environments: install its venv (Debian, Ubuntu: sudo apt install "
                f"python{version}-venv), or name another Python: make setup PYTHON=/path/to/python3.12"
            )
    LOG.unlink(missing_ok=True)
    # The pip that an older Python brings takes twice as long to choose among thousands of files, but it does, too.
    subprocess.run(pip_command("--retries=0", "pip"), cwd=ROOT, capture_output=True, env=environment)
    if torch_index:  # torch alone, without its dependencies: with two indexes at once either could supply any package.
        pip_install("--index-url", torch_index, "--no-deps", "torch", environment=environment)
    # compat: a plain path in the environment, which a folder named minigpt in the working directory can't hide.
    pip_install("--config-settings", "editable_mode=compat", "-e", ".[dev,sweep]", environment=environment)
    # To bytecode on all cores, where pip takes one: all but what is seldom loaded, and tests, not all of them valid.
    compiling = [f"{VENV}/bin/python", "-m", "compileall", "-q", "-j", "0", "-x", SELDOM_LOADED]
    subprocess.run([*compiling, f"{VENV.name}/lib", "minigpt"], cwd=ROOT, capture_output=True, env=environment)
    STAMP.write_text(json.dumps(stamp | {"inputs": wanted_inputs(torch_index)}))
    print("The environment is complete: source .venv/bin/activate, then minigpt --help", flush=True)


def pip_command(*wanted: str) -> list[str]:
    """Return the command that installs `wanted` into .venv/, from ROOT."""
    pip = [f"{VENV}/bin/python", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"]
    return [*pip, "-c", "constraints.txt", *wanted]


def pip_install(*wanted: str, environment: dict[str, str]) -> None:
    """Run `pip install`. If it fails, write what it said to standard error to the log, too.

    Raises:
        SetupError: it failed; the sentence says why.
    """
    # setuptools calls compat transitional: it says so with ten lines, and constraints.txt names a version that has it.
    quiet = {"PYTHONWARNINGS": "ignore:Compat editable installs", "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    lines = []
    with subprocess.Popen(
        pip_command(*wanted), cwd=ROOT, env=environment | quiet, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stderr or ():
                lines.append(line)
                sys.stderr.write(line)
        except BaseException:
            let_end(process)
            raise
    if process.returncode:
        with contextlib.suppress(OSError):  # the disk may be full
            LOG.write_text("".join(lines), encoding="utf-8")
        raise SetupError(explain("".join(lines)))


def let_end(process: subprocess.Popen) -> None:
    """Wait for an interrupted pip to remove its temporary files; kill one that goes on, as no one told it to stop."""
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()


def announcement(torch_index: str) -> str:
    """Return sentences on what will be downloaded, and how much. Measured with torch 2.13."""
    text = f"Setting up .venv/ on Python {platform.python_version()}: some 90 packages from PyPI, torch the largest."
    if torch_index or sys.platform != "linux":
        place = re.sub("//[^/]*@", "//", torch_index)  # without a password
        source = f" torch comes from {place}." if torch_index else ""
        return f"{text}\nAbout 0.4 GB to download, 1.4 GB on disk; once only.{source}"
    return (
        f"{text}\n"
        "On Linux PyPI's torch brings NVIDIA's CUDA libraries: about 3 GB to download, 7 GB on disk; once only.\n"
        f"Without an NVIDIA GPU 0.4 GB do: press Ctrl-C, then make setup TORCH_INDEX={CPU_INDEX}"
    )


def explain(log: str) -> str:
    """Return one sentence for a failed pip: what happened and what to do.

    Args:
        log: what pip wrote to standard error.
    """
    again = "then `make setup` again"
    if "No space left on device" in log:
        return f"the disk (or {os.environ.get('TMPDIR', '/tmp')}) is full: make room, {again}."
    if any(sign in log for sign in NETWORK_SIGNS):
        return f"the package index can't be reached: go online (or set HTTPS_PROXY or PIP_INDEX_URL), {again}."
    if re.search(r"No matching distribution found for torch\b", log):
        return (
            f"no torch 2.13 for Python {platform.python_version()} on {sysconfig.get_platform()}: minigpt needs 64-bit "
            "Linux with glibc (x86_64, aarch64) or an Apple-silicon Mac with an arm64 Python."
        )
    errors = re.findall(r"(?i)\berror: .*", log)
    reason = errors[-1].strip() if errors else "it said no reason"
    return f"pip failed ({reason}; its errors are in {LOG}): mend what it says, {again}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
