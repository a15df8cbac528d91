"""Which run is better, and is it sure? `python scripts/compare.py RUN_A RUN_B [...]`

Scores each run's best checkpoint on the whole validation split, window by window, and judges the paired differences.
Runs that differ in nothing but the seed are one side. `RUN ... vs RUN ...` divides the sides by hand.

    which=best|latest     the checkpoint of a run
    device=auto|cuda|mps|cpu
    data.dir=DIR          where prepared tokens are, if not where the runs say
"""

import sys

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Exit code 0 whatever the verdict."""
    if any(argument in ("--help", "-h") for argument in arguments):
        print(__doc__)
        return 0
    from minigpt.compare.command import compare

    compare(arguments)
    return 0


if __name__ == "__main__":
    run_script(main)
