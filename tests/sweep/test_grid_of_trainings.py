"""train.py -m: each job a process of its own, one after the other; what goes wrong in one is its result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.config.roles import default_run_dir
from minigpt.faults import LAUNCHED, STOPPED, UserFault
from minigpt.stages import train_in_stages
from minigpt.sweep.grid import run_dirs, run_grid, wants_grid

ROOT = Path(__file__).parents[2]
TRAIN = str(ROOT / "scripts" / "train.py")

# Notes what it was given; does what the job with its seed is to do.
STUB = """
import json, os, signal, sys, time
from pathlib import Path
given = dict(argument.split("=", 1) for argument in sys.argv[1:])
folder = Path(os.environ["STUB_FOLDER"])
with open(folder / "log", "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
what = json.loads(os.environ["STUB_DOES"]).get(given["seed"], 0)
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "waits":
    def stop(number, frame):
        with open(folder / "signals", "a") as file:
            file.write(f"{number}\\n")
        sys.exit(75)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    (folder / "waits").touch()
    while True:
        time.sleep(1)
sys.exit(what)
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Runs a grid of seeds whose trainings do what they are told; gives exit code, said lines and what was started."""
    file = tmp_path / "stub.py"
    file.write_text(STUB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUB_FOLDER", str(tmp_path))

    def run(*arguments: str, **does: object) -> tuple[int, list[str], list[list[str]]]:
        monkeypatch.setenv("STUB_DOES", json.dumps({name.removeprefix("seed"): what for name, what in does.items()}))
        said: list[str] = []
        code = run_grid(["-m", *arguments], [sys.executable, str(file)], say=said.append)
        log = tmp_path / "log"
        return code, said, [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return run


def test_each_combination_is_trained_once_in_order(stub):
    code, said, started = stub("optimizer.lr=1e-3,3e-3", "trainer.max_steps=7", "seed=1,2")
    assert code == 0
    assert started == [
        [f"optimizer.lr={lr}", "trainer.max_steps=7", f"seed={seed}"] for lr in ("0.001", "0.003") for seed in (1, 2)
    ]
    assert sum("finished" in line for line in said) == 4
    assert "=== Job 3 of 4: optimizer.lr=0.003 seed=1" in said


def test_what_goes_wrong_in_a_job_is_its_result_and_the_others_run(stub):
    code, said, started = stub("seed=1,2,3,4,5", seed2=5, seed3="killed", seed4=1)
    assert len(started) == 5
    assert code == 5
    table = said[-5:]
    for line, word in zip(
        table,
        ["finished", "failed (training became non-finite)", "killed by SIGKILL", "failed (a bug)", "finished"],
        strict=True,
    ):
        assert word in line
    assert stub("seed=3,1", seed3="killed")[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_job_once_and_no_other_is_begun(tmp_path, number):
    """In a process of its own: the signal is sent to that alone."""
    (tmp_path / "stub.py").write_text(STUB)
    command = f"""
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from minigpt.sweep.grid import run_grid
sys.exit(run_grid(["-m", "seed=1,2,3"], [sys.executable, {str(tmp_path / "stub.py")!r}]))
"""
    own = {"STUB_FOLDER": str(tmp_path), "STUB_DOES": '{"2": "waits"}'}
    process = subprocess.Popen(
        [sys.executable, "-c", command], cwd=tmp_path, env=os.environ | own, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "waits").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == STOPPED
    assert (tmp_path / "signals").read_text().split() == [str(int(number))]
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    assert "not begun" in said
    assert "The same command goes on" in said


FAULTS = {
    "a mistyped key": (["sed=1,2"], "No setting 'sed'"),
    "a value that can't be": (["seed=1,-2"], "seed must be at least 0"),
    "one folder for all": (["seed=1,2", "run.dir=here"], "Leave out run.dir"),
    "a value twice": (["seed=1,1"], "values that are there twice"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_can_not_be_is_named_before_anything_is_started(stub, tmp_path, case):
    arguments, words = FAULTS[case]
    with pytest.raises(UserFault) as fault:
        stub(*arguments)
    assert words in str(fault.value)
    assert not (tmp_path / "log").exists()


def test_it_starts_no_trainings_under_torchrun(stub, monkeypatch):
    for name, value in zip(LAUNCHED, ("0", "2", "0", "127.0.0.1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserFault, match="without torchrun"):
        stub("seed=1,2")


def test_only_a_command_with_the_flag_is_a_grid():
    assert wants_grid(["-m", "seed=1,2"])
    assert wants_grid(["seed=1,2", "--multirun"])
    assert not wants_grid(["seed=1"])
    assert not wants_grid(["-m", "seed=1", "--help"])
    assert not wants_grid(["-m", "seed=1", "--cfg=job"])


def test_the_best_validation_is_shown(stub, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "metrics.jsonl").write_text(
        '{"val/loss": 2.5}\n{"val/loss": 2.25}\n{"val/loss": null}\n{"step": 4}\n{"val'
    )
    said = stub("seed=1", "run.dir=here")[1]
    assert "val/loss 2.2500" in said[-1]
    assert "val/loss" not in stub("seed=1", "run.dir=there")[1][-1]


def test_train_py_trains_a_grid(tmp_path):
    """Of one job: the stub above shows what several are."""
    (tmp_path / "text.txt").write_text("how much wood would a woodchuck chuck if " * 30)
    settings = ["data=text", "data.source=text.txt", "tokenizer=byte", "model=gpt-nano", "model.n_layer=1",
                "model.block_size=8", "batch_tokens=64", "trainer.max_steps=2", "trainer.device=cpu",
                "trainer.threads=1", "samples.every_steps=0", "schedule.warmup_steps=1"]  # fmt: skip
    command = [sys.executable, TRAIN, "-m", *settings, "seed=2"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "step-000000002" / "MANIFEST.json").exists()
    assert "seed: 2\n" in (run / "config.yaml").read_text()
    line = done.stdout.splitlines()[-1]
    assert "finished" in line
    assert "val/loss" in line


def test_the_table_names_the_runs_of_trainings_that_start_from_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job, made = ["experiment=chat_tiny", "data=stdlib", "seed=2"], []
    train_in_stages(compose("train", job), job, lambda each: made.append(default_run_dir(each)) or 0)
    assert [str(folder) for folder in run_dirs([(job, "seed=2")])] == made[1:]
