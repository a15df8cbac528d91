"""Builds decode.cpp with the machine's C++ compiler: once per machine, for its processor, in about 2 s."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from minigpt.files import replaced

SOURCE = Path(__file__).with_name("decode.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC")
# The best that the compiler takes: Apple's has no OpenMP, and some know -mcpu only.
EXTRAS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
COMPILER_SECONDS = 120


class NoNativeCode(Exception):
    """Raised when decode.cpp can't be used here; the message says why."""


@functools.cache
def library() -> ctypes.CDLL:
    """Return decode.cpp as a library, built if this machine has not built it before.

    Raises:
        NoNativeCode: no compiler, or it fails; or the folder for builds can't be written.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minigpt"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # code in it will be run: nobody else writes there
        code = ctypes.CDLL(str(build(folder)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: no home
        raise NoNativeCode(f"{type(error).__name__}: {error}") from None
    code.minigpt_step.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64]
    return code


def find_compiler() -> str | None:
    """Return the C++ compiler: what CXX names, else the first of the usual ones."""
    return next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])), None)


def build(folder: Path) -> Path:
    """Return the library in this folder, compiled if the folder lacks it."""
    if (compiler := find_compiler()) is None:
        raise NoNativeCode(f"no C++ compiler found: none of {', '.join(COMPILERS)} is on PATH")
    path = folder / f"decode-{fingerprint(compiler)}.so"
    problem = ""
    for extra in () if path.exists() else EXTRAS:
        try:
            with replaced(path) as unfinished:  # another process may build it at the same time: either file will do
                command = [compiler, *FLAGS, *extra, str(SOURCE), "-o", str(unfinished)]
                subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_SECONDS, check=True)
            return path
        except subprocess.CalledProcessError as error:
            problem = problem or (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[0]
    if problem:
        raise NoNativeCode(f"{compiler} can't compile decode.cpp: {problem}")
    return path


def fingerprint(compiler: str) -> str:
    """Return a hash of what a build depends on: the source, the compiler, the flags and the processor."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(errors="replace").splitlines() if cpu.exists() else []
    processor = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    facts = (os.path.realpath(compiler), os.stat(compiler).st_mtime_ns, FLAGS, EXTRAS, platform.machine(), processor)
    return hashlib.sha256(SOURCE.read_bytes() + repr(facts).encode()).hexdigest()[:20]
