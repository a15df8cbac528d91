"""Signals end work without steps at once, and a run after its step."""

import os
import signal
import subprocess
import sys

import pytest

from minigpt.faults import INTERRUPTED, STOPPED, StoppedEarly
from minigpt.ranks.signals import Signals

# What a run does, without torch: it prepares, makes steps, or one that takes long.
PROGRAM = """
import sys, time
from minigpt.faults import StoppedEarly
from minigpt.ranks.signals import Signals
try:
    with Signals() as signals:
        phase = sys.argv[1]
        signals.noted_only = phase.startswith("step")
        print("ready", flush=True)
        if phase == "prepare":
            time.sleep(600)
        while phase == "step" and not signals.received:
            time.sleep(0.01)
        if phase == "step":
            sys.exit(75)
        time.sleep(600)
except StoppedEarly as early:
    print(early, file=sys.stderr)
    sys.exit(early.exit_code)
"""


def start(phase: str, **options) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, phase],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, STOPPED)])
def test_before_the_first_step_a_signal_ends_the_work_at_once(number, code):
    process = start("prepare")
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == code
    assert said.count("nothing is lost") == 1


def test_between_steps_a_signal_is_noted_and_said():
    process = start("step")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert (process.returncode, said) == (STOPPED, "\nSIGTERM: stopping after this step, with a checkpoint.\n")


def test_a_second_ctrl_c_ends_the_process_at_once():
    process = start("step-long")
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
