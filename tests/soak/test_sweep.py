"""Trial W2 with real trainings: a sweep that is killed again and again ends with the table of one that was not."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.rundir.rows import read_rows

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
SCRIPT = Path(__file__).parents[2] / "scripts" / "sweep.py"
KILLS = 8
SPACE = (
    """search.space={"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": true}, "model.n_layer": {"choices": [1, 2]}}"""
)
SWEEP = [
    SPACE, "trials=5", "search.startup_trials=3", "search.pruner=median", "trainer.max_steps=600",
    "logger.every_steps=50", "samples.every_steps=0", "validate.every_steps=100", "checkpoint.every_steps=25",
]  # fmt: skip  # long beside the start of a process, so that kills meet trainings
LEFT_OUT = ("samples.", "logger.", "validate.", "checkpoint.", "run.dir=")


def command(place, folder: Path) -> list[str]:
    shared = [setting for setting in place.arguments("unused") if not setting.startswith(LEFT_OUT)]
    return [sys.executable, str(SCRIPT), *SWEEP, *shared, f"sweep.dir={folder / 'sweep'}"]


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "sweep" / "leaderboard.csv", newline="") as file:
        return [{key: text for key, text in row.items() if key != "run.dir"} for row in csv.DictReader(file)]


def finished(folder: Path) -> dict[str, int]:
    """Trials that have a result -> how often their training was begun or continued."""
    try:
        with open(folder / "sweep" / "leaderboard.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return {}
    return {row["run.dir"]: starts(Path(row["run.dir"])) for row in rows if row["state"] != "unfinished"}


def rows(folder: Path) -> int:
    return sum(len(read_rows(metrics)) for metrics in folder.glob("sweep/trials/*/metrics.jsonl"))


def starts(run: Path) -> int:
    return sum(row["event"] in ("began", "continued") for row in read_rows(run / "events.jsonl"))


def test_w2_a_sweep_of_real_trainings_killed_again_and_again(place):
    straight, killed = place.folder / "straight", place.folder / "killed"
    done = subprocess.run(command(place, straight), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    moments, kills = random.Random(2), 0
    for _ in range(KILLS):
        before, goal = finished(killed), rows(killed) + moments.randint(1, 6)
        process = subprocess.Popen(
            command(place, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and rows(killed) < goal:
            time.sleep(0.01)
        kills += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait()
        assert all(starts(Path(run)) == count for run, count in before.items()), "a finished trial was run again"
    done = subprocess.run(command(place, killed), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert table(killed) == table(straight)
    continued = sum(starts(run) - 1 for run in (killed / "sweep" / "trials").iterdir())
    print(f"\nkilled {kills} times, trainings continued {continued} times; {[row['state'] for row in table(straight)]}")
    assert kills >= KILLS // 2
    assert continued > 0
