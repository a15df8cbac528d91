"""`minigpt sweep` with the stub for a trainer, as a process that can be killed."""

import sys
from pathlib import Path

from minigpt.faults import run_script
from minigpt.sweep import results, search
from minigpt.sweep.search import run_sweep
from minigpt.sweep.settings import read_sweep

STUB = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stub_train.py"))]


def sweep(arguments: list[str]) -> int:
    code = run_sweep(read_sweep(arguments, STUB))
    assert "torch" not in sys.modules, "on a CPU a sweep's own process needs none"
    return code


if __name__ == "__main__":
    search.POLL_SECONDS = 0.01
    results.draw_picture = lambda sweep, study: None
    run_script(sweep)
