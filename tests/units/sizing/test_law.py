"""The law against its own measurements, and what anyone may expect of it."""

import csv
import itertools
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


def errors(fitted: str) -> list[float]:
    """The relative errors of the law on measured runs, the smallest first."""
    runs = [row for row in csv.DictReader((FOLDER / "law_runs.csv").open()) if row["fitted"] == fitted]
    return sorted(abs(expected(TEXTS[row["text"]], row) / float(row["bits"]) - 1) for row in runs)


def expected(of: dict[str, str], row: dict[str, str]) -> float:
    text = Text(int(of["bytes"]), float(of["kneser_ney"]), float(of["xz"]), float(of["kneser_ney_part"]))
    numbers = {field.name: float(row[field.name]) for field in fields(Size) if field.name in row}
    vocabulary = 4096 if of["pilot_4096"] and int(row["vocab_size"]) >= 4096 else 2048
    if pilot := of["pilot_4096" if vocabulary == 4096 else "pilot"]:
        tokens = numbers["steps"] * numbers["batch_tokens"]
        text = replace(text, density=numbers["passes"] * text.bytes / text.bytes_of(tokens, int(row["vocab_size"])))
        text = leveled(text, pilot_of(text, {"vocab_size": vocabulary}), float(pilot))
    return bits_per_byte(text, Size(**numbers))  # type: ignore[arg-type]


def test_one_layer_is_for_short_trainings():
    short, long = choose(PYTHON, 20, speed), choose(Text(20_000_000, 1.75, 1.24, 2.25), 220, speed)
    assert (short.n_layer, short.tokens < law.ONE_LAYER) == (1, True)
    assert long.n_layer > 1
    typed = choose(PYTHON, 900, speed, {"n_layer": 1})
    assert typed.bits_per_byte == min(
        train(PYTHON, replace(size, n_layer=1), 900 * speed(replace(size, n_layer=1)), {}).bits_per_byte
        for size in candidates(PYTHON)
    )


def test_a_longer_context_is_for_longer_trainings_on_texts_that_repeat_themselves():
    assert [choose(PYTHON, seconds, speed).block_size for seconds in (30, 480)] == [64, 128]
    assert choose(replace(PYTHON, xz=1.2 * PYTHON.kneser_ney), 240, speed).block_size == 64


def test_the_constants_fit_the_measurements():
    fitted = errors("yes")
    assert fitted[int(0.9 * len(fitted))] < RANGE


def test_with_a_pilot_the_law_holds_on_texts_it_was_not_fitted_on(monkeypatch):
    judged = errors("pilot")
    assert judged[int(0.9 * len(judged))] < PILOT_RANGE
    assert judged[int(0.6 * len(judged))] < 0.03
    monkeypatch.setattr(law, "TRUST", 0.0)
    assert errors("pilot")[-1] > 0.1
