"""Runs made by commit 25310c3, in fp64: training gives the stored numbers. `golden/NAME.json` was written once.

The samples of `softmax` and `linear` are of the version from which on a sample without a prompt starts from a newline.
"""

import json
import shutil
from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.training.run import train

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("softmax", "rotary", "linear")


@pytest.fixture(params=NAMES)
def golden(request, folder):
    """The stored facts, in a folder that holds the text."""
    shutil.copy(GOLDEN / "text.txt", "text.txt")
    return json.loads((GOLDEN / f"{request.param}.json").read_text())


def agree(rows, wanted):
    """Every stored number, to 1e-12; later versions may add columns."""
    assert [row["step"] for row in rows] == [row["step"] for row in wanted]
    for row, expected in zip(rows, wanted, strict=True):
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-12), (row["step"], name)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_same_training_gives_the_same_numbers(golden):
    run = Path("run")
    assert train(compose("train", [*golden["arguments"], f"run.dir={run}"])) == 0
    agree(lines(run / "metrics.jsonl"), golden["rows"])
    assert lines(run / "samples.jsonl") == golden["samples"]
