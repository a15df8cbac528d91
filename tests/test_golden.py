"""Runs made by commit 25310c3, in fp64: what trains, continues or reads them must give the stored numbers.

`golden/NAME.json` holds the command, the rows of all ten steps and a greedy sample; `golden/NAME/` is the run
directory as a kill after step 5 left it. The files were written once and are never written again.
"""

import json
import shutil
from pathlib import Path

import pytest

from minigpt.config.compose import compose
from minigpt.sampling.sample import sample
from minigpt.training.run import train

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("softmax", "rotary", "linear")


@pytest.fixture(params=NAMES)
def golden(request, tmp_path, monkeypatch):
    """The stored facts, in a folder of their own that holds the text."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "text.txt", "text.txt")
    return json.loads((GOLDEN / f"{request.param}.json").read_text()) | {"run": GOLDEN / request.param}


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


def test_an_unfinished_run_is_found_under_its_old_name_and_goes_on(golden):
    run = Path(golden["run_dir"])
    shutil.copytree(golden["run"], run)
    assert train(compose("train", golden["arguments"])) == 0
    assert [each.name for each in run.parent.iterdir()] == [run.name]  # no other run was begun
    assert [row["event"] for row in lines(run / "events.jsonl")][:2] == ["began", "continued"]
    agree(lines(run / "metrics.jsonl"), golden["rows"])
    assert lines(run / "samples.jsonl") == golden["samples"]


def test_a_checkpoint_writes_the_same_greedy_text(golden, capsys):
    command = [f"checkpoint={golden['run']}", f"prompt={golden['greedy']['prompt']}", "temperature=0", "stream=false"]
    command += [f"max_new_tokens={golden['greedy']['max_new_tokens']}", "precision=fp64", "compile=off"]
    assert not sample(compose("sample", command))
    assert capsys.readouterr().out == golden["greedy"]["text"]
