"""Why a trial failed, in words: from its exit code and the last lines of its output."""

import re
import signal
from collections.abc import Sequence

from minigpt.faults import NO_CHECKPOINT, NON_FINITE, STORAGE_FAILURE, USER_FAULT

OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|\bMemoryError\b", re.IGNORECASE)
KINDS = {
    USER_FAULT: "its settings were refused",
    NO_CHECKPOINT: "none of its checkpoints can be used",
    STORAGE_FAILURE: "its run directory can't be written",
    NON_FINITE: "loss or gradient stayed NaN or infinite",
}


def cause_of(code: int, said: Sequence[str]) -> str:
    """A sentence without its full stop.

    Args:
        code: of the process; negative: the signal that ended it.
        said: the last lines of its output.
    """
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, most likely by the system for want of memory (exit -9)"
    if code < 0:
        return f"ended by {signal.Signals(-code).name} (exit {code})"
    if code in KINDS:
        return f"{KINDS[code]} (exit {code})"
    if any(OUT_OF_MEMORY.search(line) for line in said):
        return f"out of memory (exit {code})"
    last = said[-1].strip() if said else "it said nothing"
    return f"crashed (exit {code}): {last[:200]}"
