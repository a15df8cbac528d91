"""Draw a run's loss.png and report.html again: `python scripts/report.py run.dir=RUN`."""

import os
import sys

try:
    from minigpt.faults import UserFault, run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)

USAGE = "Type: python scripts/report.py run.dir=RUN   (the folder of a run, like runs/default-1a2b3c)"


def main(arguments: list[str]) -> int:
    """The folder is taken literally, whatever characters it holds."""
    if any(argument in ("--help", "-h") for argument in arguments):
        print(f"{__doc__}\n{USAGE}")
        return 0
    others = [argument for argument in arguments if not argument.startswith("run.dir=")]
    if others:
        raise UserFault(f"report.py takes run.dir=RUN and nothing else, got {others[0]!r}. {USAGE}")
    folders = [argument.removeprefix("run.dir=") for argument in arguments]
    if len(folders) != 1 or not folders[0]:
        raise UserFault(f"report.py wants one run directory. {USAGE}")

    from pathlib import Path

    from minigpt.report.page import write_report

    write_report(folders[0])
    run = Path(os.path.expanduser(folders[0]))
    print(f"Wrote {run / 'loss.png'} and {run / 'report.html'}")
    return 0


if __name__ == "__main__":
    run_script(main)
