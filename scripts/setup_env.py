"""Makes .venv/ with everything minigpt needs; quick when nothing changed, mends a half-made one.

Standard library only: it runs before there is an environment. scripts/setup.sh finds the Python
(3.11 to 3.13) and calls this; people type `make setup`.

    PYTHON=...        the interpreter to build on
    TORCH_INDEX=URL   take the torch wheel, and only it, from there (PyTorch's CPU build for example)
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "minigpt-setup.json"  # there and matching: complete. There with inputs "": was interrupted
LOG = VENV / "minigpt-setup.log"
BOOT = ROOT / ".boot"  # virtualenv, where the Python has no venv of its own
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_GB = 2.0  # measured: 1.4 GB on Linux with the CPU build of torch; and room for pip's temporary files
CUDA_DISK_GB = 8.0

NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "nodename nor servname",
    "Network is unreachable",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Connection reset by peer",
    "ProxyError",
)


class SetupError(RuntimeError):
    """Something the person at the terminal can mend; its text is the sentence to print."""


def main() -> int:
    """Bring .venv/ to the state that pyproject.toml and constraints.txt describe."""
    try:
        with alone():
            stamp = read_stamp()
            base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
            torch_index = os.environ.get("TORCH_INDEX", stamp.get("torch_index", ""))
            if not is_current(stamp, asked_base(base), torch_index):
                refuse_hopeless_machines(torch_index)
                install(stamp, base, torch_index)
    except SetupError as fault:
        print(f"make setup: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. `make setup` again makes it whole.", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two makes started at once in one clone: the second waits, and finds the work done."""
    with open(ROOT / "pyproject.toml", "rb+") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def asked_base(base: str) -> str | None:
    """The interpreter .venv/ has to stand on: `base` when PYTHON named it, else any that runs."""
    return base if os.environ.get("PYTHON") else None


def wanted_inputs(torch_index: str) -> str:
    """What the environment depends on, in one string: a finished one carries it in its stamp."""
    files = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*files, torch_index.encode()])).hexdigest()


def read_stamp() -> dict[str, str]:
    """What the last setup left; empty when there was none."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: dict[str, str]) -> None:
    """Replace the stamp in one step."""
    STAMP.with_suffix(".new").write_text(json.dumps(stamp, indent=1) + "\n")
    STAMP.with_suffix(".new").replace(STAMP)


def venv_runs() -> bool:
    """Whether .venv/'s Python starts (an upgrade may have removed the one below it) and is a wanted one."""
    probe = "import pip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"
    try:
        return subprocess.run([VENV / "bin/python", "-c", probe], capture_output=True).returncode == 0
    except OSError:
        return False


def is_current(stamp: dict[str, str], base: str | None, torch_index: str) -> bool:
    """Whether there is nothing to do."""
    return stamp.get("inputs") == wanted_inputs(torch_index) and not must_start_over(stamp, base)


def must_start_over(stamp: dict[str, str], base: str | None) -> bool:
    """Whether .venv/ can't be built upon.

    It was interrupted half-way, stands on another interpreter than `base`, was moved or copied here
    (paths are written into its programs), or does not run.
    """
    interrupted = stamp.get("inputs") == ""
    other_base = base is not None and stamp.get("base") != base
    moved = stamp.get("root", str(ROOT)) != str(ROOT)
    return interrupted or other_base or moved or not venv_runs()


def refuse_hopeless_machines(torch_index: str) -> None:
    """Say before a long download what would make it fail at its end.

    Raises:
        SetupError: no torch wheel exists for this machine, or the disk is nearly full.
    """
    if sys.maxsize < 2**32:
        raise SetupError("this Python is a 32-bit program and torch needs a 64-bit one: install a 64-bit Python.")
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        raise SetupError(
            "torch 2.13 has no build for Intel Macs, and this Python runs as x86_64: on an Apple-silicon Mac use an "
            "arm64 Python (make setup PYTHON=/opt/homebrew/bin/python3.12), else a Linux machine."
        )
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < DISK_GB and not venv_runs():
        raise SetupError(
            f"{free_gb:.1f} GB free on the disk of {ROOT}, about {DISK_GB:.0f} GB needed: make room first."
        )
    if takes_cuda_torch(torch_index) and free_gb < CUDA_DISK_GB and not venv_runs():
        print(f"Note: {free_gb:.1f} GB free; torch with CUDA takes about {CUDA_DISK_GB:.0f}.")


def takes_cuda_torch(torch_index: str) -> bool:
    """Whether pip would take PyPI's Linux build of torch, which brings NVIDIA's libraries along."""
    return sys.platform == "linux" and not torch_index


def own_sources() -> str:
    """Where this person's pip looks besides PyPI, as they set it up; empty when they did not."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = re.findall(r"(?:^|\.)((?:extra-)?index-url|find-links)=('.*')$", listed, flags=re.MULTILINE)
    return ", ".join(dict.fromkeys(f"{key} {value}" for key, value in found))


def announcement(torch_index: str, sources: str) -> str:
    """What is going to be downloaded, and how much of it. Measured with torch 2.13."""
    text = (
        f"Setting up .venv/ on Python {platform.python_version()}: some 90 packages from PyPI, torch the largest.\n"
        "About 0.4 GB to download, 1.4 GB on disk; once only, one to five minutes."
    )
    if torch_index:
        return f"{text} torch comes from {torch_index}."
    if not takes_cuda_torch(torch_index):
        return text
    cuda = "On Linux PyPI's torch brings NVIDIA's CUDA libraries: about 3 GB to download, 7 GB on disk"
    if sources:
        return f"{text}\n{cuda}, unless your pip finds another build ({sources})."
    return (
        f"{text.splitlines()[0]}\n{cuda}; once only.\n"
        f"Without an NVIDIA GPU 0.4 GB do: press Ctrl-C, then make setup TORCH_INDEX={CPU_INDEX}"
    )


def install(stamp: dict[str, str], base: str, torch_index: str) -> None:
    """Make or mend .venv/ and install the project into it.

    Raises:
        SetupError: with the sentence that names what is missing.
    """
    begin = time.monotonic()
    if must_start_over(stamp, asked_base(base)):
        print(announcement(torch_index, own_sources()), flush=True)
        make_venv(base)
        stamp = {}
    else:
        print("Bringing .venv/ up to date with pyproject.toml and constraints.txt.", flush=True)
    new_stamp = {"inputs": "", "base": stamp.get("base", base), "root": str(ROOT), "torch_index": torch_index}
    write_stamp(new_stamp)
    LOG.unlink(missing_ok=True)
    if torch_index:
        # Only torch, without its dependencies: two indexes at once would let either supply any package.
        pip("install", "--index-url", torch_index, "--no-deps", "-c", "constraints.txt", "torch")
    pip("install", "-c", "constraints.txt", "-e", ".[dev,sweep]")
    write_stamp(new_stamp | {"inputs": wanted_inputs(torch_index)})
    shutil.rmtree(BOOT, ignore_errors=True)
    print(f"The environment stands ({time.monotonic() - begin:.0f} s).", flush=True)


def make_venv(base: str) -> None:
    """An empty .venv/ on `base`: by venv, else (Debian without python3-venv) by a borrowed virtualenv.

    Raises:
        SetupError: neither works.
    """
    venv = subprocess.run([base, "-m", "venv", "--clear", VENV], capture_output=True, text=True, env=clean_env())
    if venv.returncode == 0:
        return
    # PEP 668 forbids installing into the system's Python; --target does not touch it.
    print("This Python has no working venv: borrowing virtualenv (a few MB, kept in .boot/ meanwhile).", flush=True)
    boot = subprocess.run(
        [base, "-m", "pip", "install", "--quiet", "--upgrade", "--target", BOOT, "virtualenv"],
        capture_output=True,
        text=True,
        env=clean_env(),
    )
    if boot.returncode == 0:
        made = subprocess.run(
            [base, "-m", "virtualenv", "--clear", "--no-periodic-update", VENV],
            capture_output=True,
            text=True,
            env=clean_env() | {"PYTHONPATH": str(BOOT)},
        )
        if made.returncode == 0:
            return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if is_network_fault(boot.stderr):
        raise SetupError("no network, so virtualenv could not be fetched: go online, then `make setup` again.")
    reason = (last_line(boot.stderr) or last_line(venv.stderr or venv.stdout)).strip()
    raise SetupError(
        f"Python {version} can't make an environment ({reason}): install its venv (Debian, Ubuntu: "
        f"sudo apt install python{version}-venv python3-pip), then `make setup` again."
    )


def clean_env() -> dict[str, str]:
    """The environment without what would send packages elsewhere than into .venv/."""
    unwanted = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def pip(*arguments: str) -> None:
    """Run .venv/'s pip: the big downloads are shown, the rest goes to a log.

    Raises:
        SetupError: pip failed; with its reason in one sentence.
    """
    command = [str(VENV / "bin/python"), "-m", "pip", *arguments, "--progress-bar", "off", "--no-input"]
    settings = clean_env() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_WARN_SCRIPT_LOCATION": "1"}
    output: list[str] = []
    said: set[str] = set()
    with (
        open(LOG, "a") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            output.append(line)
            for news in progress(line):
                if news not in said:
                    print(f"  {news}", flush=True)
                said.add(news)
    if process.returncode:
        raise SetupError(explain("".join(output)))


def progress(line: str) -> Iterator[str]:
    """The news in a line of pip's output: downloads of 5 MB and more, and the long silence at the end."""
    download = re.match(r"\s*Downloading (?:.*/)?([^-/]+-[^-/]+)\S* \(([\d.]+) (MB|GB)\)", line)
    if download and (download[3] == "GB" or float(download[2]) >= 5):
        yield f"downloading {download[1]} ({download[2]} {download[3]})"
    if "WARNING: Retrying" in line:
        yield "no answer from the package index: trying again for a while"
    if line.startswith("Installing collected packages:") and line.count(",") > 5:
        yield f"installing {line.count(',') + 1} packages: half a minute or more"


def is_network_fault(output: str) -> bool:
    """Whether pip's output tells of a network that was not there."""
    return any(sign in output for sign in NETWORK_SIGNS)


def last_line(output: str) -> str:
    """The last line that says something."""
    return next((line for line in reversed(output.splitlines()) if line.strip()), "")


def explain(output: str) -> str:
    """One sentence for a failed pip: what happened and what to do."""
    again = "then `make setup` again"
    if "No space left on device" in output:
        return f"the disk (or {os.environ.get('TMPDIR', '/tmp')}) is full: make room, {again}."
    if is_network_fault(output):
        return f"the package index can't be reached: go online (or set HTTPS_PROXY or PIP_INDEX_URL), {again}."
    if re.search(r"No matching distribution found for torch\b", output):
        return (
            f"no torch 2.13 for Python {platform.python_version()} on {sysconfig.get_platform()}: minigpt needs 64-bit "
            "Linux with glibc (x86_64, aarch64) or an Apple-silicon Mac."
        )
    errors = [line.strip() for line in output.splitlines() if line.lstrip().lower().startswith("error:")]
    reason = errors[-1] if errors else last_line(output).strip()
    return f"pip failed: {reason} (all of it in {LOG.relative_to(ROOT)}). Mend that, {again}."


if __name__ == "__main__":
    sys.exit(main())
