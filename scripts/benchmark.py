"""Measure speed, beside others: `python scripts/benchmark.py preset=c0|c1|124m [key=value ...]`; --help lists all."""

import sys

try:
    from minigpt.faults import run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Everything that can be wrong on the command line is named before anything is measured."""
    from minigpt.benchmark.settings import read_plan

    plan = read_plan(arguments)

    from minigpt.benchmark.command import benchmark

    return benchmark(plan)


if __name__ == "__main__":
    run_script(main)
