"""`make demo` behind its training: the comparison with the baselines, and the last command."""

import json

import pytest

from minigpt import demo as demo_module
from minigpt.config.compose import compose
from minigpt.config.schema import RunConfig, TrainConfig
from minigpt.demo import comparison, demo
from minigpt.faults import FINISHED, STOPPED
from minigpt.invocation import typed


@pytest.fixture
def run(tmp_path):
    """A run whose best validation is 1.5 bits per byte."""
    path = tmp_path / "run"
    path.mkdir()
    rows = [{"step": step, "val/loss": 2 * bits, "val/bits_per_byte": bits} for step, bits in ((10, 1.5), (20, 1.75))]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beside(run, **baselines) -> str:
    rows = [{"name": name, "bits_per_byte": bits} for name, bits in baselines.items()]
    (run / "baseline.json").write_text(json.dumps({"fingerprint": "f1", "baselines": rows}))
    return comparison(run)


def test_whoever_wins_is_named(run):
    begin = "validation 1.500 bits per byte (lower is better). "
    assert beside(run, unigram=3.0, xz=2.0) == f"{begin}The GPT beats xz 2.000, unigram 3.000."
    assert beside(run, unigram=3.0, xz=1.5) == (
        f"{begin}The GPT beats unigram 3.000. Still ahead of it: xz 1.500. More text helps more than steps"
    )  # its last validation is not its best
    first = (run / "metrics.jsonl").read_text().splitlines()[0]
    (run / "metrics.jsonl").write_text(f"{first}\n")
    assert beside(run, xz=1.5).endswith("Still ahead of it: xz 1.500. It needs more steps: trainer.max_steps=N")
    assert "nothing to compare" in beside(run)
    (run / "metrics.jsonl").write_text("")
    assert "nothing to compare" in beside(run, unigram=3.0)


def test_an_unfinished_run_is_left_to_its_training(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo_module, "train", lambda _: STOPPED)
    assert demo(TrainConfig(run=RunConfig(dir=str(tmp_path / "none")))) == STOPPED
    assert capsys.readouterr().out == ""


def test_a_finished_run_is_shown(monkeypatch, run, capsys):
    monkeypatch.setattr(demo_module, "train", lambda _: FINISHED)
    monkeypatch.setattr(demo_module, "sample", lambda config: print(f"[sample {config.checkpoint} {config.prompt}]"))
    beside(run, xz=2.0)
    assert demo(TrainConfig(run=RunConfig(dir=str(run)))) == FINISHED
    shown = capsys.readouterr().out
    places = [
        shown.index(part)
        for part in ("xz 2.000", f"[sample {run} ['def']]", "loss.png", "report.html", typed("sample"))
    ]
    assert places == sorted(places)


def test_a_rank_that_is_left_over_from_another_job_hides_nothing(run, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(demo_module, "train", lambda _: FINISHED)
    monkeypatch.setattr(demo_module, "sample", lambda _: None)
    beside(run, xz=2.0)
    assert demo(TrainConfig(run=RunConfig(dir=str(run)))) == FINISHED
    assert "bits per byte" in capsys.readouterr().out


def test_a_demo_that_starts_from_another_trains_that_first(monkeypatch):
    seen = []
    monkeypatch.setattr(demo_module, "train", lambda config: seen.append(config.experiment) or STOPPED)
    assert demo(compose("train", ["experiment=demo", "experiment=chat_tiny"])) == STOPPED
    assert seen == ["chat_tiny_base"]
