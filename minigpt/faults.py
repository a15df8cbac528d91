"""What can go wrong outside our own code, and the exit code for each kind.

A fault's text is written for the user at the terminal: what happened, what was got, what was wanted, and the command
that repairs it. Any other exception is a bug and keeps its traceback (exit code 1).
"""

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from minigpt.invocation import prints

FINISHED = 0
BUG = 1
USER_FAULT = 2
NO_CHECKPOINT = 3
STORAGE_FAILURE = 4
NON_FINITE = 5
TRIALS_FAILED = 6  # a sweep is over, and some of its trials failed
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: "run me again"
INTERRUPTED = 130  # 128 + SIGINT

MEANINGS = {
    FINISHED: "finished",
    BUG: "a bug",
    USER_FAULT: "wrong settings or data",
    NO_CHECKPOINT: "no usable checkpoint",
    STORAGE_FAILURE: "storage failure",
    NON_FINITE: "training became non-finite",
    TRIALS_FAILED: "some trials of a sweep failed",
    STOPPED: "stopped by a signal with a checkpoint (run again)",
    INTERRUPTED: "stopped at once",
}

# Package -> what to install; `make setup` does not.
EXTRAS = {"uvicorn": "fastapi uvicorn", "lm_eval": "lm-eval", "fsspec": "fsspec aiohttp"}
EXTRAS |= {name: name for name in ("gguf", "ray", "aiohttp", "pyarrow", "zstandard")}

# Foreign text, and that of an untrained model, may hold any byte, and some would move the cursor or rename the window.
# On a terminal such bytes are shown as pictures (U+2400 ...); tabs and newlines are left, and carriage returns, which
# each line end of a text from Windows has, are not shown.
CONTROL_PICTURES: dict[int, int | None] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
CONTROL_PICTURES |= {0x7F: 0x2421, ord("\r"): None}
CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class UserFault(ValueError):
    """A config, data or command-line fault. Several faults are reported in one go."""

    exit_code = USER_FAULT

    def __init__(self, *faults: str):
        self.faults: Sequence[str] = faults
        super().__init__("\n".join(faults))


class NoUsableCheckpoint(RuntimeError):
    """There are checkpoints, but none verifies."""

    exit_code = NO_CHECKPOINT


class StorageFailure(RuntimeError):
    """The run directory can't be written (disk full, no permission, folder gone)."""

    exit_code = STORAGE_FAILURE


class NonFiniteTraining(RuntimeError):
    """The loss or gradient stayed NaN or infinite."""

    exit_code = NON_FINITE


class StoppedEarly(BaseException):
    """A signal came while there was nothing to save. Not an Exception: code that handles failures must let it pass."""

    def __init__(self, number: int):
        self.exit_code = INTERRUPTED if number == signal.SIGINT else STOPPED
        name = signal.Signals(number).name
        super().__init__(f"Stopped by {name} with no step begun: nothing is lost. Run the same command again.")


def run_script(main: Callable[[list[str]], int | None]) -> None:
    """Run a script's `main(arguments)` and exit with the exit code for its outcome."""
    try:
        code = main(sys.argv[1:]) or FINISHED
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
        print("Stopped at once.", file=sys.stderr)
    except BrokenPipeError:  # the reader is gone, as in `minigpt sample ... | head`
        code = 128 + signal.SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed to nowhere
    except (Exception, StoppedEarly) as error:
        code, text = explain(error)
        if code == BUG or prints():
            print(text.translate(CONTROL_PICTURES), file=sys.stderr)
        else:
            time.sleep(1)  # the launcher ends rank 0 when this process ends
    sys.exit(code)


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code for an exception, and what to print about it."""
    if isinstance(error, StoppedEarly):
        return error.exit_code, str(error)
    if isinstance(error, UserFault) and len(error.faults) != 1:
        return USER_FAULT, f"{len(error.faults)} errors:" + "".join(f"\n- {line}" for line in error.faults)
    if isinstance(error, UserFault | NoUsableCheckpoint | StorageFailure | NonFiniteTraining):
        return error.exit_code, f"Error: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return STORAGE_FAILURE, f"Error: {error.filename or 'the output'} can't be written: {error.strerror}"
    if isinstance(error, PermissionError):
        return USER_FAULT, f"Error: {error}. Give a file or folder that you may read and write"
    package = str(getattr(error, "name", None) or "minigpt").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package != "minigpt":
        remedy = f"{sys.executable} -m pip install {EXTRAS.get(package, package)}"
        remedy = f"Type: {remedy}" if package in EXTRAS else f"Run `make setup`, or {remedy}"
        return USER_FAULT, f"Error: the Python package '{package}' is missing in {sys.executable}. {remedy}"
    return BUG, "".join(traceback.format_exception(error)).rstrip()
