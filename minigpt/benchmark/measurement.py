"""One measurement in a process of its own: `python -m minigpt.benchmark.measurement TASK.json RESULT.json`."""

import contextlib
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import UserFault, run_script

_numbers = itertools.count()


class MeasurementFailed(UserFault):
    """The process of a measurement ended with an error."""


def find_job(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that a task names, like steps.train_py; only its module is imported."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"minigpt.benchmark.{module}"), function)


def main(arguments: list[str]) -> int:
    """Do the task and write its result."""
    task_file, result_file = map(Path, arguments)
    task = json.loads(task_file.read_text())
    result_file.write_text(json.dumps(find_job(task["job"])(task)))
    return 0


def measure(folder: Path, job: str, *, threads: int = 0, **task: Any) -> dict[str, Any]:
    """Do a job in a fresh process.

    Args:
        folder: for its files.
        job: see `find_job`.
        threads: see `environment`.
        task: what the job is told.

    Returns:
        The job's result, with `began`, the time.time() when its process was started.

    Raises:
        MeasurementFailed: it ended with an error.
    """
    name = f"{next(_numbers):03d}-{job}"
    task_file, result_file, log = (folder / f"{name}{end}" for end in (".json", ".result.json", ".log"))
    task_file.write_text(json.dumps({"job": job, **task}))
    command = [sys.executable, "-m", "minigpt.benchmark.measurement", str(task_file), str(result_file)]
    began = time.time()
    with open(log, "wb") as output, started(command, folder, threads, stdout=output) as process:
        code = process.wait()
    if code != 0:
        raise MeasurementFailed(failure(job, code, log.read_text(errors="replace")))
    return {"began": began} | json.loads(result_file.read_text())


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, threads: int = 0, *, stdout: Any = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; it and its children are killed when the block ends."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(threads), stdout=stdout, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def environment(threads: int) -> dict[str, str]:
    """The environment of every contender: as many threads as ours, whatever the shell says; 0 leaves it as it is."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    numbers = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}
    # PYTHONPATH: `-m minigpt...` works from any folder.
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths), **numbers}


def failure(what: str, code: int, output: str) -> str:
    """The sentence about a process that failed, with the end of what it printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("Error:", "- "))] or lines[-1:] or ["it printed nothing"]
    return f"{what}: its process ended with exit code {code}: {' '.join(told)[:400]}"


if __name__ == "__main__":
    run_script(main)
