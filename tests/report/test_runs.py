"""`minigpt runs`: what the tables say of finished, stopped, interrupted, running and damaged ones."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from minigpt.faults import UserFault
from minigpt.report.runs import list_runs, state_of

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def folder(tmp_path):
    """A folder of runs, of which the one named softmax changed last."""
    for place, name in enumerate(("linear", "softmax")):
        shutil.copytree(GOLDEN / name, tmp_path / "runs" / name)
        os.utime(tmp_path / "runs" / name / "metrics.jsonl", (1.7e9 + place, 1.7e9 + place))
    (tmp_path / "runs" / "no run" / "metrics.jsonl").mkdir(parents=True)
    return tmp_path / "runs"


def test_a_line_tells_name_text_size_steps_validation_state_and_time(folder):
    head, *lines = list_runs(str(folder)).splitlines()
    assert head.split("  ")[0] == "run"
    assert [line.split()[0] for line in lines] == ["linear", "softmax"]
    cells = [cell.strip() for cell in lines[1].split("  ") if cell]
    assert cells[1:4] == ["text.txt, bpe", "4.29 k", "5 of 10"]
    rows = [json.loads(line) for line in (folder / "softmax" / "metrics.jsonl").read_text().splitlines()]
    best = min(row["val/loss"] for row in rows if row.get("val/loss"))
    assert cells[4] == f"{best:.4f}"
    assert cells[6] == "interrupted"
    assert cells[7].startswith("2023-11-1")


@pytest.mark.parametrize(
    ("event", "state"),
    [("finished", "finished"), ("stopped", "stopped"), ("gave_up", "non-finite"), ("continued", "interrupted")],
)
def test_the_state_is_that_of_the_last_event(folder, event, state):
    with open(folder / "linear" / "events.jsonl", "a") as events:
        events.write(json.dumps({"event": event}) + "\n" + json.dumps({"event": "skipped"}) + "\n")
    line = list_runs(str(folder)).splitlines()[1]
    assert [cell.strip() for cell in line.split("  ") if cell][-2] == state


def test_a_run_that_goes_on_is_seen_by_its_lock_and_not_disturbed(folder):
    with open(folder / "linear" / "run.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert state_of(folder / "linear", []) == "running"
    assert state_of(folder / "linear", []) == "interrupted"


def test_a_run_gives_its_checkpoints(folder):
    run = folder / "softmax"
    first = run / "checkpoints" / "step-000000005"
    shutil.copytree(first, run / "checkpoints" / "step-000000007")
    (run / "checkpoints" / "step-000000007" / "MANIFEST.json").write_text("{")
    head, good, bad = list_runs(str(run)).splitlines()
    assert head.split() == ["checkpoint", "val/loss", "MB", "made"]
    assert good.startswith(str(first))
    assert good.endswith("best")
    assert "damaged: " in bad


def test_nothing_there_is_said_with_the_way_out(tmp_path):
    assert "Train one: minigpt train run.dir=" in list_runs(str(tmp_path))
    with pytest.raises(UserFault, match="no such folder"):
        list_runs(str(tmp_path / "gone"))
