"""The law against its own measurements, and what anyone may expect of it."""

import csv
import itertools
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from minigpt.sizing import law
from minigpt.sizing.dial import LEAST_BYTES
from minigpt.sizing.law import (
    PILOT_RANGE,
    RANGE,
    Size,
    Text,
    bits_per_byte,
    candidates,
    choose,
    leveled,
    pilot_of,
    train,
)

PYTHON = Text(6_583_878, 1.736, 1.452, 1.982)
NOTES = Text(260_951, 2.341, 2.367, 3.327)
SECONDS = [30, 60, 120, 240, 480, 960, 3600, 28800]


def speed(size: Size) -> float:
    """Of two quiet cores."""
    return 1e11 / (6 * size.multiplied)


@pytest.mark.parametrize("text", [PYTHON, NOTES])
def test_more_time_buys_more(text: Text):
    sizes = [choose(text, seconds, speed) for seconds in SECONDS]
    assert all(later.bits_per_byte <= 1.002 * sooner.bits_per_byte for sooner, later in itertools.pairwise(sizes))
    assert all(size.low < size.bits_per_byte < size.high for size in sizes)
    assert all(size.tokens / speed(size) <= 1.03 * seconds for size, seconds in zip(sizes, SECONDS, strict=True))
    known = [train(replace(text, level=1.0), size, size.tokens, {}) for size in (sizes[0], sizes[-1])]
    assert [round(1 - size.low / size.bits_per_byte, 2) for size in known] == [PILOT_RANGE, RANGE]


def test_a_little_more_speed_seldom_changes_the_choice():
    shapes = [
        {
            (size.n_layer, size.n_embd, size.batch_tokens)
            for size in (choose(PYTHON, s, speed), choose(PYTHON, 1.03 * s, speed))
        }
        for s in range(30, 3000, 60)
    ]
    assert sum(len(both) > 1 for both in shapes) <= 0.3 * len(shapes)


def test_what_is_given_is_kept():
    size = choose(PYTHON, 60, speed, {"n_layer": 7, "dropout": 0.05, "steps": 11})
    assert (size.n_layer, size.dropout, size.steps) == (7, 0.05, 11)


def test_small_models_have_an_output_layer_of_their_own_and_count_it():
    small, large = (choose(PYTHON, seconds, speed) for seconds in (20, 3600))
    assert (small.tied, large.tied) == (False, True)
    assert small.parameters == small.multiplied + small.vocab_size * small.n_embd
    assert large.parameters == large.multiplied


def test_a_small_text_is_regularized_and_has_a_smaller_vocabulary():
    size, once = (choose(text, 60, speed) for text in (NOTES, PYTHON))
    assert size.passes > 3 > 1 > once.passes
    assert size.weight_decay > 0.3 > 0.15 > once.weight_decay
    # A weight forgets its past at the same rate in each pass.
    assert size.weight_decay * size.matrix_lr * size.steps / size.passes == pytest.approx(law.DECAY, rel=0.02)
    assert {size.vocab_size for size in candidates(NOTES)} == {2048}
    assert max(size.vocab_size for size in candidates(PYTHON)) == 8192
    shortest = Text(LEAST_BYTES, 2.5, 3.0)
    assert {size.vocab_size for size in candidates(shortest)} == {512}  # bpe has 256 bytes and end-of-text at least


FOLDER = Path(__file__).parents[3] / "benchmarks"
TEXTS = {row["text"]: row for row in csv.DictReader((FOLDER / "law_texts.csv").open())}


def errors(judged: Callable[[dict[str, str]], bool]) -> list[float]:
    """The relative errors of the law on measured runs, the smallest first."""
    runs = filter(judged, csv.DictReader((FOLDER / "law_runs.csv").open()))
    return sorted(abs(expected(TEXTS[row["text"]], row) / float(row["bits"]) - 1) for row in runs)


def expected(of: dict[str, str], row: dict[str, str]) -> float:
    text = Text(int(of["bytes"]), float(of["kneser_ney"]), float(of["xz"]), float(of["kneser_ney_part"]))
    numbers = {field.name: float(row[field.name]) for field in fields(Size) if field.name in row}
    if row["init"] == "normal":  # the law before the models began with heads that copy
        text = replace(text, xz=math.inf)
    else:
        vocabulary = int(row["vocab_size"])
        tokens = numbers["steps"] * numbers["batch_tokens"]
        text = replace(text, density=numbers["passes"] * text.bytes / text.bytes_of(tokens, vocabulary))
        text = leveled(text, pilot_of(text, {"vocab_size": vocabulary}), float(of["pilot"]))
    return bits_per_byte(text, Size(**numbers))  # type: ignore[arg-type]


def test_copying_is_for_two_layers_and_texts_that_repeat_themselves():
    def saved(xz: float, layers: int, tokens: float) -> float:
        size = train(PYTHON, replace(next(candidates(PYTHON)), n_layer=layers), tokens, {})
        return law.copied(replace(PYTHON, xz=xz * PYTHON.kneser_ney), size)

    assert 0 < saved(1.0, 2, 2e6) == saved(0.8, 2, 4e6) < saved(0.8, 9, 4e6) < law.COPIED
    assert 0 < saved(1.0, 2, 3e5) < saved(1.0, 2, 6e5) < saved(1.0, 2, 2e6)
    assert saved(1.3, 2, 2e6) == saved(1.0, 1, 2e6) == saved(1.0, 2, 1e5) == 0


def test_the_constants_fit_the_measurements():
    fitted = errors(lambda row: row["fitted"] == "yes" and row["init"] == "normal")
    assert fitted[int(0.9 * len(fitted))] < RANGE


def test_with_a_pilot_the_forecast_is_within_its_range(monkeypatch):
    def judged(row: dict[str, str]) -> bool:
        return row["fitted"] == "yes" and row["init"] == "induction" and row["note"] != "pilot"

    with_pilot = errors(judged)
    assert with_pilot[int(0.8 * len(with_pilot))] < PILOT_RANGE
    monkeypatch.setattr(law, "TRUST", 0.0)
    assert errors(judged)[-1] > 0.1
