"""`make demo` behind its training: the comparison, its memory, and the last command."""

import json
from dataclasses import replace

import numpy as np
import pytest

from minigpt import demo as demo_module
from minigpt.config.schema import RunConfig, TrainConfig
from minigpt.data.prepare import Prepared
from minigpt.data.tokenizer import build_tokenizer
from minigpt.demo import BASELINE, comparison, demo, measure_baseline
from minigpt.faults import FINISHED, STOPPED
from minigpt.invocation import typed


class Split:
    """A split of byte tokens."""

    def __init__(self, text):
        self.array = np.frombuffer(text, dtype=np.uint8).astype(np.uint16)

    def __len__(self):
        return len(self.array)

    def tokens(self, start, stop):
        return self.array[start:stop]


@pytest.fixture
def prepared(tmp_path):
    text = b"the cat sat on the mat. " * 20
    return Prepared(tmp_path, build_tokenizer("byte"), Split(text), Split(text[:71]), "f1", {})


@pytest.fixture
def run(tmp_path):
    """A run whose best validation is 1.5 bits per byte."""
    path = tmp_path / "run"
    path.mkdir()
    rows = [{"step": step, "val/loss": 2 * bits, "val/bits_per_byte": bits} for step, bits in ((10, 1.5), (20, 1.75))]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_whoever_wins_is_named(run):
    assert comparison(run, 2.0) == (
        "validation 1.500 bits per byte; order-3 byte n-gram 2.000: lower is better, the GPT wins by 25%."
    )
    assert "n-gram model is still ahead" in comparison(run, 1.5)
    (run / "metrics.jsonl").write_text("")
    assert "not been validated" in comparison(run, 2.0)


def test_the_baseline_is_measured_once_on_the_text_of_the_split(run, prepared, monkeypatch):
    asked = []

    def measure(train, val):
        asked.append((train, val))
        return 2.125

    monkeypatch.setattr(demo_module, "ngram_bits_per_byte", measure)
    assert measure_baseline(run, prepared) == 2.125
    assert asked == [(b"the cat sat on the mat. " * 20, (b"the cat sat on the mat. " * 20)[:71])]
    assert f"{BASELINE}: 2.125" in (run / "report.html").read_text()
    assert measure_baseline(run, prepared) == 2.125
    assert len(asked) == 1
    measure_baseline(run, replace(prepared, fingerprint="f2"))  # other tokens: measured anew
    assert len(asked) == 2


def test_a_report_that_fails_does_not_spoil_the_demo(run, prepared, monkeypatch, capsys):
    def broken(_):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(demo_module, "write_report", broken)
    assert 0 < measure_baseline(run, prepared) < 8
    assert "could not be drawn: RuntimeError: no fonts" in capsys.readouterr().out


def test_an_unfinished_run_is_left_to_its_training(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo_module, "train", lambda _: STOPPED)
    assert demo(TrainConfig(run=RunConfig(dir=str(tmp_path / "none")))) == STOPPED
    assert capsys.readouterr().out == ""


def test_a_finished_run_is_shown(monkeypatch, run, prepared, capsys):
    monkeypatch.setattr(demo_module, "train", lambda _: FINISHED)
    monkeypatch.setattr(demo_module, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(demo_module, "sample", lambda config: print(f"[sample {config.checkpoint} {config.prompt}]"))
    assert demo(TrainConfig(run=RunConfig(dir=str(run)))) == FINISHED
    shown = capsys.readouterr().out
    places = [
        shown.index(part) for part in (BASELINE, f"[sample {run} ['def']]", "loss.png", "report.html", typed("sample"))
    ]
    assert places == sorted(places)
