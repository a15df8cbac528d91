"""scripts/sweep.py with the stub for a trainer, as a process that can be killed."""

import sys
from pathlib import Path

from minigpt.faults import run_script
from minigpt.loading import loading

with loading():
    from minigpt.sweep import driver
    from minigpt.sweep.driver import run_sweep
    from minigpt.sweep.settings import read_sweep

STUB = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stub_train.py"))]

if __name__ == "__main__":
    driver.POLL_SECONDS = 0.01
    driver.write_page = lambda sweep, study: None
    run_script(lambda arguments: run_sweep(read_sweep(arguments, STUB)))
