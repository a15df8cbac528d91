"""A second Ctrl-C ends a run at once, and no handler outlives it; promises/test_stop_and_guard.py has the rest."""

import os
import signal
import subprocess
import sys

import pytest

from minigpt.faults import INTERRUPTED, StoppedEarly
from minigpt.ranks.signals import Signals

# What a run does in a step that takes long, without torch.
PROGRAM = """
import time
from minigpt.ranks.signals import Signals
with Signals() as signals:
    signals.noted_only = True
    print("ready", flush=True)
    while True:
        time.sleep(0.05)  # a signal just before a long sleep would be seen after it
"""


def test_a_second_ctrl_c_ends_the_process_at_once():
    command, pipes = [sys.executable, "-c", PROGRAM], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "\n"
    assert "Press Ctrl-C again to stop at once" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == INTERRUPTED
    assert "continues from the last checkpoint" in said


def test_handlers_are_put_back():
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in numbers]
    with Signals() as signals:
        signals.noted_only = True
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1  # the first one says why
        with pytest.raises(StoppedEarly, match="SIGUSR1"):  # the run goes back to an earlier checkpoint, say
            signals.raise_if_received()
    assert [signal.getsignal(number) for number in numbers] == before
