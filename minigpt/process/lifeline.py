"""Ends a training whose parent was killed: a sweep, or `train -m`. The parent holds the other end of its stdin."""

import os
import signal
import threading
import time

VARIABLE = "MINIGPT_LIFELINE"  # in the environment of a training whose stdin ends with its parent
CHECKPOINT_SECONDS = 60.0  # from the parent's end to the training's: a step, and a checkpoint on the disk


def watch_lifeline() -> None:
    """Watch stdin, if the parent asked for it: at its end stop with a checkpoint, and be killed after a minute."""
    if os.environ.pop(VARIABLE, None) is not None:  # other processes of the run must not watch it, too
        threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CHECKPOINT_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # the parent gave us a process group of our own
