"""Sweeps of a stub trainer, which tests can run, kill and look into."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from minigpt.sweep import driver
from minigpt.sweep.driver import run_sweep
from minigpt.sweep.settings import Sweep, read_sweep
from minigpt.sweep.trial_store import Trial, TrialStore, state_of

HERE = Path(__file__).parent
STUB = [sys.executable, "-I", "-S", str(HERE / "stub_train.py")]
GIVE_UP_SECONDS = 200.0

LR = """search.space={"optimizer.lr": {"low": 1e-5, "high": 1, "log": true}}"""
LAYERS = """search.space={"model.n_layer": {"low": 1, "high": 8}}"""
SHARED = [
    "data=text", "tokenizer=byte", "model.block_size=10", "batch_tokens=100", "trainer.max_steps=12",
    "validate.every_steps=2", "trainer.device=cpu", "schedule.warmup_steps=1",
]  # fmt: skip


class StubSweep:
    """A sweep in a folder; the same folder again continues it."""

    def __init__(self, folder: Path, *settings: str):
        folder.mkdir(parents=True, exist_ok=True)
        text = folder.parent / "text.txt"
        text.write_text("how much wood would a woodchuck chuck if " * 30)
        self.path = folder / "sweep"
        self.hold = folder / "hold"  # while it is there, trainings of started sweeps wait at step 4
        where = [f"data.source={text}", f"data.dir={folder.parent / 'data'}", f"sweep.dir={self.path}"]
        self.arguments = [*SHARED, *where, *settings]

    def plan(self, *extra: str) -> Sweep:
        return read_sweep([*self.arguments, *extra], STUB)

    def __call__(self, *extra: str, code: int = 0) -> "StubSweep":
        assert run_sweep(self.plan(*extra)) == code
        return self

    def start(self, *extra: str, **variables: str) -> subprocess.Popen:
        """A process of its own."""
        command = [sys.executable, str(HERE / "sweep_with_stub.py"), *self.arguments, *extra]
        variables = {**os.environ, "STUB_HOLD": str(self.hold), **variables}
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def trials(self) -> list[Trial]:
        plan = self.plan()
        return TrialStore(plan.folder, plan.name, plan.space, plan.config.sweep.storage).trials()

    def states(self) -> list[str]:
        return [state_of(trial) for trial in self.trials()]

    def log(self) -> list[str]:
        """What the stubs have noted: start, stop and end of each training."""
        file = self.path / "trials" / "log.txt"
        return file.read_text().splitlines() if file.exists() else []

    def table(self) -> list[dict[str, str]]:
        """leaderboard.csv but for the folders."""
        with open(self.path / "leaderboard.csv", newline="") as file:
            return [{key: text for key, text in row.items() if key != "run.dir"} for row in csv.DictReader(file)]

    def summary(self) -> dict:
        return json.loads((self.path / "summary.json").read_text())


def made_trial(
    number: int,
    params: dict | None = None,
    state: TrialState = TrialState.RUNNING,
    value: float | None = None,
    curve: dict[int, float] | None = None,
    *,
    space: dict | None = None,
    facts: dict | None = None,
) -> Trial:
    """A trial as the store returns it."""
    space = space or {key: CategoricalDistribution([each]) for key, each in (params or {}).items()}
    trial = create_trial(
        state=TrialState.RUNNING,
        params=params or {},
        distributions=space,
        user_attrs=facts or {},
        intermediate_values=curve or {},
    )
    trial.number, trial.state, trial.value = number, state, value
    trial.datetime_complete = trial.datetime_start if state.is_finished() else None
    return trial


def wait_until(true: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    """Give up after a generous time, or when the process has ended without it."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        assert process is None or process.poll() is None or true(), process.stdout.read()
        time.sleep(0.01)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    """The stub's trials are over in a moment."""
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.01)


@pytest.fixture(autouse=True)
def no_charts(monkeypatch):
    """Optuna's charts take a second; test_results.py and test_real_trainings.py draw them."""
    monkeypatch.setattr(driver, "write_page", lambda sweep, study: None)


@pytest.fixture
def sweep(tmp_path) -> type[StubSweep]:
    return StubSweep
