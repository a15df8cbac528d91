"""The process that talks to wandb, so that the one that trains never does.

wandb starts threads and a server of its own, replaces sys.exit, and waits at the end for whoever does not answer.
All of that happens here. Rows come in as JSON lines on stdin, `null` ends them; what the user should know goes out
on stdout. The training process may kill this one whenever it likes. Standard library and wandb only.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

# Nothing of the machine, the environment or the code leaves it: numbers and the run's settings do.
SETTINGS = {
    "console": "off",  # the screen
    "host": "-",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_meta": True,  # host, user, e-mail, command line, paths
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "silent": True,
    "quiet": True,
}


def main() -> NoReturn:
    """Open the run that the first line describes, and log the rows of the others."""
    try:
        tell("say", log_rows(json.loads(sys.stdin.readline())))
        code = 0
    except Exception as error:
        tell("fault", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        code = 1
    os._exit(code)  # not by way of wandb's exit handlers, which wait for its server


def tell(kind: str, text: str) -> None:
    """One line for the training process."""
    if text:
        print(json.dumps({kind: text}), flush=True)


def log_rows(opening: dict[str, Any]) -> str:
    """Log until the rows end.

    Returns:
        What the user may want to type next.
    """
    folder = Path(opening["dir"]) / "wandb"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # without this, wandb would go to the system's temporary folder
        pass
    os.environ |= {
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }  # no reports to others, offline least of all
    import wandb

    patience = opening.pop("patience_seconds")
    run = wandb.init(**opening, settings=SETTINGS | {"init_timeout": patience})
    if run.url:
        tell("say", f"wandb: {run.url}")
    while (row := json.loads(sys.stdin.readline() or "null")) is not None:
        run.log(row["values"], step=row["step"])
    leave = threading.Timer(2 * patience, os._exit, [1])  # the training process may be gone: nobody else ends this one
    leave.daemon = True
    leave.start()
    run.finish()
    return "" if run.url else f"wandb: `wandb sync {os.path.relpath(folder)}/offline-run-*` uploads this run"


if __name__ == "__main__":
    main()
