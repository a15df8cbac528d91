"""Try many settings: `python scripts/sweep.py search=NAME [experiment=NAME] [trials=N] [workers=N] [key=value ...]`."""

import sys
from pathlib import Path

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Everything that can be wrong is named before Optuna is loaded and anything is written."""
    from minigpt.sweep.settings import read_plan

    plan = read_plan(arguments, [sys.executable, str(Path(__file__).with_name("train.py"))])

    from minigpt.sweep.driver import run_sweep

    return run_sweep(plan)


if __name__ == "__main__":
    run_script(main)
