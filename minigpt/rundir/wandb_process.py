"""The process that talks to wandb, so that the one that trains never does.

wandb starts threads and a server of its own, replaces sys.exit, and at the end waits for servers that do not answer.
All of that happens here. The first line on stdin is the task; rows are read from metrics.jsonl while it grows, until
stdin ends, as it does when the training process ends in any way. Messages for the user go to stdout in lines that begin
with "wandb: ", the reason of a failure in one that begins with "fault: ".
The training process may kill this one at any time. Standard library and wandb only.
"""

import json
import os
import select
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

# Only numbers and the run's settings are sent: nothing about the machine, the environment or the code.
SETTINGS = {
    "console": "off",  # the screen
    "host": "-",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_meta": True,  # host, user, e-mail, command line, paths
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "silent": True,
}


def main() -> NoReturn:
    """Open the run that the first line describes, and log its rows."""
    try:
        log_rows(json.loads(sys.stdin.readline()))
        code = 0
    except Exception as error:
        print(f"fault: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        code = 1
    os._exit(code)  # not by way of wandb's exit handlers, which wait for its server


def follow(path: Path, start: int) -> Iterator[dict[str, Any]]:
    """Yield the rows that are added to a file after its first `start` bytes, until stdin ends."""
    over = False
    while not over:
        over = bool(select.select([sys.stdin], [], [], 1.0)[0])
        if path.exists():
            with open(path, "rb") as file:
                file.seek(start)
                *lines, _ = file.read().split(b"\n")  # the last one may be unfinished
            start += sum(len(line) + 1 for line in lines)
            yield from map(json.loads, lines)


def log_rows(opening: dict[str, Any]) -> None:
    """Log the rows of a run until training ends."""
    folder = Path(opening["dir"]) / "wandb"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # without this, wandb would go to the system's temporary folder
        pass
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}  # no reports to others, offline least
    import wandb

    patience, start, rows = opening.pop("patience_seconds"), opening.pop("rows_from"), folder.with_name("metrics.jsonl")
    run = wandb.init(**opening, settings=SETTINGS | {"init_timeout": patience})
    if run.url:
        print(f"wandb: {run.url}", flush=True)
    for row in follow(rows, start):
        run.log({key: value for key, value in row.items() if value is not None and key != "step"}, step=row["step"])
    threading.Timer(2 * patience, os._exit, [1]).start()  # the training, which would end this process, may be gone
    run.finish()
    if not run.url:
        print(f"wandb: `wandb sync {os.path.relpath(folder)}/offline-run-*` uploads this run", flush=True)


if __name__ == "__main__":
    main()
