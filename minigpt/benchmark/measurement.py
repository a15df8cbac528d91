"""One measurement in a process of its own: `python -m minigpt.benchmark.measurement JOB FILE`."""

import importlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import UserFault, run_script
from minigpt.invocation import PACKAGE
from minigpt.loading import loading

numbers = itertools.count()  # for names of files and folders


def do(job: str, task: dict[str, Any]) -> dict[str, Any]:
    """Call the function that a job names, like steps.train_py; only its module is imported."""
    module, _, function = job.partition(".")
    with loading():
        made = importlib.import_module(f"minigpt.benchmark.{module}")
    return getattr(made, function)(**task)


def main(arguments: list[str]) -> int:
    """Do a job with the arguments in a JSON file, and write its result in their place."""
    job, file = arguments[0], Path(arguments[1])
    file.write_text(json.dumps(do(job, json.loads(file.read_text()))))
    return 0


def measure(folder: Path, job: str, *, threads: int = 0, **task: Any) -> dict[str, Any]:
    """Do a job in a fresh process.

    Args:
        folder: for its files.
        job: see `do`.
        threads: see `run`.
        task: the job's arguments.

    Returns:
        The job's result; with a `first_at` in it (time.time()) also `first`, the seconds since its process began.

    Raises:
        UserFault: the process ended with an error.
    """
    file = folder / f"{next(numbers):03d}.json"
    file.write_text(json.dumps(task))
    began = time.time()
    run(job, [sys.executable, "-m", "minigpt.benchmark.measurement", job, str(file)], folder, threads)
    result = json.loads(file.read_text())
    return result | ({"first": result["first_at"] - began} if "first_at" in result else {})


def run(name: str, command: Sequence[str], folder: Path, threads: int = 0) -> list[tuple[float, str]]:
    """Run a program in a folder to its end.

    Args:
        name: of the program, for the error sentence.
        command: that starts it.
        folder: where it runs.
        threads: that it may use, as many as minigpt; 0 leaves that to it.

    Returns:
        The lines of its output, each after the moment (time.time()) when it came.

    Raises:
        UserFault: the program ended with an error.
    """
    paths = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))  # for -m in any folder
    variables = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}
    if threads:
        variables |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            lines = [(time.time(), line.strip()) for line in process.stdout or ()]
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        texts = [text for _, text in lines if text] or ["it printed nothing"]
        said = " ".join([text for text in texts if text.startswith(("Error:", "- "))] or texts[-1:])
        raise UserFault(f"{name}: its process ended with exit code {process.returncode}: {said[:400]}")
    return lines


if __name__ == "__main__":
    run_script(main)
