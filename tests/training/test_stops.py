"""Stops, whenever they come: the right exit code, nothing half done, and the same command ends with the same bytes."""

import contextlib
import copy
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from minigpt import faults
from minigpt.checkpoint import folder as store
from minigpt.checkpoint.folder import list_checkpoints, verify
from minigpt.ranks.group import Processes
from minigpt.ranks.signals import Signals
from minigpt.ranks.slurm import PATIENCE_SECONDS
from minigpt.rundir.rows import TIMINGS
from minigpt.training import ending, run_state, saving
from minigpt.training import run as run_module
from minigpt.training.outputs import Outputs
from minigpt.training.run import queued_again
from minigpt.training.step import LanguageModel

SETTINGS = ["checkpoint.every_steps=3", "validate.every_steps=2", "trainer.micro_batch=4", "logger.every_steps=1"]


def kill_self_before(monkeypatch, place, name: str, number: int, *, call: int = 1) -> None:
    """Send this process a signal when `place.name` is called for the n-th time."""
    real, calls = getattr(place, name), []

    def wrapper(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return real(*arguments, **options)

    monkeypatch.setattr(place, name, wrapper)


def ends(run) -> tuple:
    """What a run leaves: the last checkpoint's bytes, and its rows without their timings."""
    last = list_checkpoints(run.path / "checkpoints")[-1]
    rows = [{key: value for key, value in row.items() if key not in TIMINGS} for row in run.rows()]
    return last.name, {file.name: file.read_bytes() for file in last.iterdir()}, rows


@pytest.fixture(scope="module")
def straight(new_run, tmp_path_factory):
    """An uninterrupted run."""
    run = new_run(tmp_path_factory.mktemp("straight"))
    run(*SETTINGS)
    return run


@pytest.fixture
def twin(straight, tmp_path):
    """A run of the same text, not begun."""
    run = copy.copy(straight)
    run.path = tmp_path / "run"
    return run


PHASES = {
    "data preparation": (run_state, "prepare_tokens", 1),
    "the model's making": (run_module, "GPT", 1),
    "Lightning's set-up": (LanguageModel, "configure_optimizers", 1),
    "the first micro-batch": (LanguageModel, "training_step", 1),
    "a validation": (Outputs, "score", 2),
    "a save": (saving, "write_checkpoint", 1),
    "a save's last rename": (store.os, "rename", 1),
    "the last validation": (Outputs, "score", 3),
    "the report": (ending, "write_report", 1),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_leaves_a_run_that_ends_with_the_same_bytes(twin, straight, monkeypatch, phase):
    run = twin
    place, name, call = PHASES[phase]
    with monkeypatch.context() as patch:
        kill_self_before(patch, place, name, signal.SIGTERM, call=call)
        run(*SETTINGS, code=0 if phase in ("the last validation", "the report") else faults.STOPPED)
    for checkpoint in list_checkpoints(run.path / "checkpoints"):
        verify(checkpoint)
    assert not list(run.path.glob("checkpoints/.step*"))
    run(*SETTINGS)
    assert ends(run) == ends(straight)


def test_a_signal_while_compiling_stops_at_once(run, monkeypatch):
    def compile_long(function, **_):
        def compiling(*_):
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("went on compiling")

        return compiling

    monkeypatch.setattr(run_module.torch, "compile", compile_long)
    run("trainer.compile=on", code=faults.STOPPED)
    assert list_checkpoints(run.path / "checkpoints") == []


def exit_code(monkeypatch, run, *arguments: str) -> int:
    """Of scripts/train.py."""
    from minigpt.config.compose import compose
    from minigpt.training.run import train

    monkeypatch.setattr(sys, "argv", ["train.py", *run.arguments(*arguments)])
    with pytest.raises(SystemExit) as ended:
        faults.run_script(lambda given: train(compose("train", given)))
    return ended.value.code


def break_the_loss(monkeypatch):
    def training_step(self, batch, batch_idx):
        self.micro_losses.append(next(self.gpt.parameters()).sum().detach() * float("nan"))
        return sum(parameter.sum() for parameter in self.gpt.parameters()) * float("nan")

    monkeypatch.setattr(LanguageModel, "training_step", training_step)


def damage_the_checkpoints(run, monkeypatch):
    exit_code(monkeypatch, run, "trainer.max_steps=2")
    for file in run.path.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])


CODES = {
    0: lambda run, patch: [],
    1: lambda run, patch: patch.setattr(run_module, "build_trainer", lambda *_, **__: 1 / 0),
    2: lambda run, patch: ["model.n_head=5"],
    3: lambda run, patch: damage_the_checkpoints(run, patch),
    4: lambda run, patch: [f"run.dir={run.folder / 'text.txt' / 'run'}"],
    5: lambda run, patch: break_the_loss(patch) or ["guard.max_skips=1", "guard.max_rollbacks=0"],
    75: lambda run, patch: kill_self_before(patch, LanguageModel, "training_step", signal.SIGTERM),
    130: lambda run, patch: kill_self_before(patch, run_state, "prepare_tokens", signal.SIGINT),
}


@pytest.mark.parametrize("code", CODES)
def test_exit_codes(run, monkeypatch, capsys, code):
    extra = CODES[code](run, monkeypatch) or []
    assert exit_code(monkeypatch, run, *extra) == code
    said = capsys.readouterr()
    assert ("Traceback" in said.err) == (code == 1)
    assert said.err.startswith("Error: ") == (code in (2, 3, 4, 5))
    assert ("Stopped" in said.out + said.err) == (code in (75, 130))


def test_the_exit_codes_are_in_the_documents():
    text = (Path(__file__).parents[2] / "docs" / "RELIABILITY.md").read_text()
    assert [code for code in CODES if f"| {code} |" in text] == list(CODES)


def fake_scontrol(monkeypatch, folder: Path, code: int, record: str = "JobState=RUNNING PreemptTime=None") -> Path:
    """One that shows this record of a job, and ends with this code where it is to queue it again."""
    log = folder / "scontrol.log"
    (folder / "bin").mkdir()
    program = folder / "bin" / "scontrol"
    show = f'[ "$1" = show ] && echo "JobId=42 {record} TimeLimit=1" && exit 0\n'
    program.write_text(f'#!/bin/sh\n{show}echo "$@" >> "{log}"\necho "no such job" >&2\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return log


PREEMPTED = "JobState=RUNNING PreemptTime=2026-11-22T10:00:00"


@pytest.mark.parametrize(
    ("number", "record", "calls"),
    [
        (signal.SIGUSR1, "JobState=RUNNING PreemptTime=None", ["requeue 42"]),
        (signal.SIGTERM, "JobState=CANCELLED PreemptTime=None", []),
        (signal.SIGTERM, PREEMPTED, ["requeue 42"]),
    ],
    ids=["time limit", "scancel", "preemption"],
)
def test_slurm_is_asked_once_to_queue_the_job_again(run, monkeypatch, tmp_path, number, record, calls):
    log = fake_scontrol(monkeypatch, tmp_path, 0, record)
    for name, value in {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "train"}.items():
        monkeypatch.setenv(name, value)
    kill_self_before(monkeypatch, LanguageModel, "training_step", number, call=3)
    run(code=faults.STOPPED)
    assert (log.read_text().splitlines() if log.exists() else []) == calls


def test_slurm_that_refuses_costs_one_sentence(run, monkeypatch, tmp_path, capsys):
    fake_scontrol(monkeypatch, tmp_path, 1)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    kill_self_before(monkeypatch, LanguageModel, "training_step", signal.SIGUSR1)
    run(code=faults.STOPPED)
    assert "SLURM: `scontrol requeue 7_3` failed: no such job" in capsys.readouterr().out


def test_a_job_that_is_preempted_before_its_first_step_is_queued_again(run, monkeypatch, tmp_path):
    log = fake_scontrol(monkeypatch, tmp_path, 0, PREEMPTED)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    kill_self_before(monkeypatch, run_state, "prepare_tokens", signal.SIGTERM)
    assert exit_code(monkeypatch, run) == faults.STOPPED
    assert log.read_text().splitlines() == ["requeue 42"]


class Gone(io.StringIO):
    """A screen nobody looks at any more."""

    def write(self, text):
        raise OSError(5, "Input/output error")

    def flush(self):
        raise OSError(5, "Input/output error")


def test_a_screen_that_is_gone_ends_no_run(twin, straight, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "stderr", Gone())
    twin(*SETTINGS)
    assert ends(twin) == ends(straight)


def test_a_run_that_torchrun_begins_again_after_a_stop_stops_at_once(run, monkeypatch, capsys):
    for name, value in {"RUN_ID": "job", "RESTART_COUNT": "0", "MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    with monkeypatch.context() as patch:
        kill_self_before(patch, LanguageModel, "training_step", signal.SIGTERM, call=2)
        run(code=faults.STOPPED)
    steps = len(run.rows())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    capsys.readouterr()
    run(code=faults.STOPPED)
    assert "asked to stop" in capsys.readouterr().out
    assert len(run.rows()) == steps
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")  # another torchrun goes on, and its restarts do too
    run("trainer.max_steps=4")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run("trainer.max_steps=6")
    assert run.rows()[-1]["step"] == 6
    assert json.loads((run.path / "events.jsonl").read_text().splitlines()[0])["event"] == "began"


TRAIN = str(Path(__file__).parents[2] / "scripts" / "train.py")
LONG = ["trainer.max_steps=100000", "validate.every_steps=0", "checkpoint.every_steps=20", "guard.max_skips=0"]


def start(run, *settings: str, **options) -> subprocess.Popen:
    """scripts/train.py for as long as it is let, some steps in."""
    before = verified_step(run)
    process = subprocess.Popen([sys.executable, TRAIN, *run.arguments(*LONG, *settings)], **options)
    while verified_step(run) == before:
        assert process.poll() is None
        time.sleep(0.02)
    return process


def verified_step(run) -> int:
    """Of the last checkpoint; 0 without one."""
    checkpoints = list_checkpoints(run.path / "checkpoints")
    return verify(checkpoints[-1])["step"] if checkpoints else 0


@pytest.mark.soak
def test_ctrl_c_twice_in_a_terminal(run):
    """K8."""
    process = start(run, start_new_session=True, stderr=subprocess.PIPE, text=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == faults.STOPPED
    assert process.stderr.read().count("Press Ctrl-C again") == 1
    step = verified_step(run)
    assert json.loads((run.path / "events.jsonl").read_text().splitlines()[-1])["step"] == step

    process = start(run, start_new_session=True)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    assert process.wait(10) in (faults.INTERRUPTED, faults.STOPPED)  # as a step is made in less than a moment
    assert verified_step(run) >= step


@pytest.mark.soak
def test_a_closed_terminal(run):
    """The kernel sends SIGHUP, and whatever is printed from then on fails."""
    terminal, end = os.openpty()
    process = start(run, stdin=end, stdout=end, stderr=end, start_new_session=True, preexec_fn=take_terminal)
    os.close(end)
    os.close(terminal)
    assert process.wait(60) == faults.STOPPED
    assert verified_step(run) == json.loads((run.path / "events.jsonl").read_text().splitlines()[-1])["step"]
    assert not list(run.path.glob("checkpoints/.step*"))


def take_terminal() -> None:
    """Make stdin the terminal that this session belongs to."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.soak
def test_a_pipe_that_is_closed_ends_no_run(run):
    """train.py | head -1"""
    process = start(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.stdout.close()
    step = verified_step(run)
    while verified_step(run) < step + 100:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == faults.STOPPED


def test_slurm_is_asked_before_the_first_step_too(run, monkeypatch, tmp_path):
    """The job waits for its data, or compiles, until its time is up."""
    log = fake_scontrol(monkeypatch, tmp_path, 0)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    kill_self_before(monkeypatch, run_state, "prepare_tokens", signal.SIGUSR1)
    run(code=faults.STOPPED)
    assert log.read_text().splitlines() == ["requeue 42"]


STUCK = """
import hashlib, os, signal, sys, threading
from minigpt.config.compose import compose
from minigpt.loading import loading
with loading():
    from minigpt.training import run, run_state

def prepare_tokens(*_):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, where no handler of Python runs

run_state.prepare_tokens = prepare_tokens
sys.exit(run.train(compose("train", sys.argv[1:])))
"""


def test_slurm_is_asked_where_a_library_keeps_the_command_from_hearing_the_signal(run, monkeypatch, tmp_path):
    log = fake_scontrol(monkeypatch, tmp_path, 0)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    done = subprocess.run([sys.executable, "-c", STUCK, *run.arguments()], timeout=60)
    assert done.returncode == faults.STOPPED
    assert log.read_text().splitlines() == ["requeue 42"]


def test_the_other_ranks_leave_the_asking_to_rank_zero(monkeypatch):
    """Else their end would be rank 0's, while that waits for scontrol."""
    done, signals = [], Signals()
    signals.received = signal.SIGUSR1
    monkeypatch.setattr(time, "sleep", done.append)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    one = Processes(rank=1, world_size=2, ask_to_stop=done.append)
    with pytest.raises(faults.StoppedEarly), queued_again(signals, one):
        raise faults.StoppedEarly(signal.SIGUSR1)
    assert done == [signal.SIGUSR1, 2 * PATIENCE_SECONDS]


def test_slurm_is_asked_once_where_the_signal_comes_to_several_ranks(monkeypatch):
    asks, left, signals = [], [], Signals()
    signals.received, signals.before_exit = signal.SIGUSR1, lambda code, sentence: left.append(code)
    monkeypatch.setattr("minigpt.training.run.requeue", lambda say, asked: asks.append(asked))
    with contextlib.suppress(faults.StoppedEarly), queued_again(signals, Processes(rank=0, world_size=2)):
        signals.before_exit(faults.STOPPED, "")  # as another rank's signal does, from its thread
        raise faults.StoppedEarly(signal.SIGUSR1)
    assert (asks, left) == ([True], [faults.STOPPED])


def test_ctrl_c_before_the_first_step_waits_for_no_controller(run, monkeypatch, tmp_path):
    log = fake_scontrol(monkeypatch, tmp_path, 0)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    kill_self_before(monkeypatch, run_state, "prepare_tokens", signal.SIGINT)
    run(code=faults.INTERRUPTED)
    assert not log.exists()


def test_a_stop_file_at_the_last_step_is_not_for_a_longer_run(run, monkeypatch):
    real = LanguageModel.on_before_optimizer_step

    def touch(self, optimizer):
        if self.state.step == 2:
            (run.path / "STOP").touch()
        return real(self, optimizer)

    monkeypatch.setattr(LanguageModel, "on_before_optimizer_step", touch)
    run("trainer.max_steps=3")
    assert not (run.path / "STOP").exists()
    run("trainer.max_steps=5")
    assert run.rows()[-1]["step"] == 5
