"""Signals are noted in any phase of a run, and obeyed where nothing is half done."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.faults import INTERRUPTED, STOPPED, StoppedEarly
from minigpt.ranks.signals import PATIENCE_SECONDS, SIGNALS, Signals

# What a run does, without torch: prepares, makes steps, or waits deep in a library.
PROGRAM = """
import contextlib, ctypes, sys, time
from minigpt.faults import StoppedEarly
from minigpt.ranks import signals
try:
    with signals.Signals() as noted:
        phase = sys.argv[1]
        noted.noted_only = phase.startswith("step")
        print("ready", flush=True)
        if phase == "prepare":
            time.sleep(30)
        if phase == "step":
            while not noted.received:
                time.sleep(0.01)
            sys.exit(75)
        if phase == "prepare-deaf":
            with contextlib.suppress(BaseException):
                time.sleep(30)
        every_signal = (ctypes.c_ulong * 16)(*[2**64 - 1] * 16)  # not to be woken by one
        ctypes.CDLL(None).ppoll(None, 0, (ctypes.c_long * 2)(30, 0), every_signal)
except StoppedEarly as early:
    print(early, file=sys.stderr)
    sys.exit(early.exit_code)
"""

STUCK = """
import os, sys
from minigpt.ranks.signals import Signals
with Signals() as noted:
    noted.noted_only = sys.argv[1] == "step"
    os.write(1, b"ready\\n")
    while True:
        try:
            os.write(1, b"x" * 4096)
        except BaseException:
            pass
"""


def start(phase: str, **options) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, phase],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_before_the_first_step_a_signal_ends_the_work_at_once(number, code):
    process = start("prepare")
    process.send_signal(number)
    _, said = process.communicate(timeout=10)
    assert process.returncode == code
    assert said.count("nothing is lost") == 1


def test_between_steps_a_signal_is_noted_and_said():
    process = start("step")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=10)
    assert process.returncode == STOPPED
    assert said == "\nSIGTERM: stopping after this step, with a checkpoint.\n"


@pytest.mark.skipif(sys.platform != "linux", reason="ppoll with a mask")
@pytest.mark.parametrize(("noted_only", "received"), [(True, None), (True, signal.SIGTERM), (False, None)])
def test_a_signal_to_a_process_that_has_not_begun_ends_one_that_waits_for_it_in_a_step(
    monkeypatch, noted_only, received
):
    got, signals = [], Signals()
    signals.noted_only, signals.received = noted_only, received
    monkeypatch.setattr(signals, "_leave", lambda code, sentence: got.append(code))
    monkeypatch.setattr(os, "kill", lambda process, number: got.append((process, number)))
    signals.take(signal.SIGTERM)
    assert got == ([STOPPED] if noted_only else [(os.getpid(), signal.SIGTERM)])
    assert signals.received == (signal.SIGTERM if noted_only else None)


def test_a_second_ctrl_c_is_heard_even_when_the_main_thread_is_deep_in_a_library():
    process = start("step-stuck")
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "\n"
    assert "Press Ctrl-C again to stop at once" in process.stderr.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == INTERRUPTED
    assert time.monotonic() - began < 8
    assert "goes on from the last checkpoint" in said


@pytest.mark.parametrize("phase", ["prepare-stuck", "prepare-deaf"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, STOPPED)])
@pytest.mark.skipif(sys.platform != "linux", reason="ppoll with a mask")
def test_before_the_first_step_a_main_thread_that_does_not_react_is_waited_for_less_than_a_second(phase, number, code):
    """It is deep in a library, or something on its way takes the exception for one that it can mend."""
    assert PATIENCE_SECONDS < 0.9
    process = start(phase)
    began = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=10)
    assert time.monotonic() - began < 2  # on a busy machine
    assert process.returncode == code
    assert said.count("nothing is lost") == 1


def test_under_nohup_a_closed_terminal_is_no_reason_to_stop():
    process = start("step", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == STOPPED


def test_a_screen_that_is_gone_is_no_reason_to_stop_either():
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "step"], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert process.stdout.readline() == b"ready\n"
    os.close(reader)
    process.send_signal(signal.SIGHUP)
    assert process.wait(10) == STOPPED


@pytest.mark.parametrize("phase", ["step", "prepare"])
def test_a_screen_that_takes_nothing_keeps_no_second_ctrl_c_from_being_heard(phase):
    """Its reader stands still, and the pipe is full: a pager, or a collector of logs that is stuck."""
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", STUCK, phase], stdout=writer, stderr=writer)
    while True:  # "ready", then full
        if os.read(reader, 6) == b"ready\n":
            break
    time.sleep(1.0)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    try:
        assert process.wait(20) == INTERRUPTED
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Signals() as signals:
        signals.noted_only = True
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.received == signal.SIGUSR1
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1  # the first one says why
        with pytest.raises(StoppedEarly, match="SIGUSR1"):  # the run goes back to an earlier checkpoint, say
            signals.raise_if_received()
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_run_listens_before_it_has_loaded_torch(tmp_path):
    """The package torch stands still here, as on a cold disk."""
    (tmp_path / "torch.py").write_text("import time; print('loading', flush=True); time.sleep(30)")
    train = Path(__file__).parents[2] / "scripts" / "train.py"
    process = subprocess.Popen(
        [sys.executable, train, f"run.dir={tmp_path / 'run'}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=10)
    assert process.returncode == STOPPED
    assert said.startswith("Stopped by SIGTERM with no step begun")
