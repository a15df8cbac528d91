"""One turn of an entrant in a process of its own: `python -m minigpt.benchmark.measurement TASK.json RESULT.json`."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.faults import run_script

Job = Callable[[dict[str, Any]], dict[str, Any]]

JOBS = {  # name of a job -> module and function; only that module is imported
    "look": ("steps", "look"),
    "whole": ("steps", "whole"),
    "bare": ("steps", "bare"),
    "curve": ("curves", "ours"),
    "nanogpt_curve": ("curves", "nanogpt"),
    "huggingface": ("huggingface", "train"),
    "sampling": ("decoding", "measure"),
    "tokenization": ("words", "measure"),
    "loading": ("loading", "measure"),
    "begin_at": ("resuming", "begin_at"),
}


def find_job(name: str) -> Job:
    """What a task asks for."""
    module, function = JOBS[name]
    return getattr(importlib.import_module(f"minigpt.benchmark.{module}"), function)


def main(arguments: list[str]) -> int:
    """Do the task, then write what came out of it."""
    task_file, result_file = map(Path, arguments)
    task = json.loads(task_file.read_text())
    result = find_job(task["job"])(task)
    result_file.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    run_script(main)
