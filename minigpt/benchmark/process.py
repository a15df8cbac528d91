"""Start a turn, wait for it, and say what went wrong with one that failed."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import UserFault

_numbers = itertools.count()


class TurnFailed(UserFault):
    """An entrant's process ended with an error."""


def environment(threads: int) -> dict[str, str]:
    """The same for all entrants: as many threads as ours, whatever the shell says; 0 leaves it as it is."""
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    found["PYTHONPATH"] = os.pathsep.join(paths)  # `-m minigpt...` works from any folder
    if threads:
        found |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return found


def run_turn(folder: Path, job: str, *, threads: int = 0, **task: Any) -> dict[str, Any]:
    """Do a job of turn.py in a fresh process.

    Args:
        folder: for its files.
        job: see `minigpt.benchmark.measurement.find_job`.
        threads: of the environment; 0 leaves it as it is.
        task: what the job is told.

    Returns:
        Its result, with `began`, the time.time() when it was started.

    Raises:
        TurnFailed: it ended with an error.
    """
    name = f"{next(_numbers):03d}-{job}"
    task_file, result_file, log = (folder / f"{name}{end}" for end in (".json", ".result.json", ".log"))
    task_file.write_text(json.dumps({"job": job, **task}))
    command = [sys.executable, "-m", "minigpt.benchmark.measurement", str(task_file), str(result_file)]
    began = time.time()
    with open(log, "wb") as output, started(command, folder, threads, stdout=output) as process:
        code = process.wait()
    if code != 0:
        raise TurnFailed(
            f"{job}: its process ended with exit code {code}: {last_words(log.read_text(errors='replace'))}"
        )
    return json.loads(result_file.read_text()) | {"began": began}


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, threads: int = 0, *, stdout: Any = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own session, gone with all its children when the block ends."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(threads),
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def last_words(text: str) -> str:
    """The end of what a failed process printed, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("Error:", "- "))] or lines[-1:]
    return " ".join(told)[:400] or "it said nothing"
