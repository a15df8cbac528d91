"""The law against its own measurements, and what anyone may expect of it."""

import csv
import itertools
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from minigpt.sizing import law
from minigpt.sizing.dial import LEAST_BYTES

PYTHON = law.Text(6_583_878, 1.736, 1.452, 1.982)
NOTES = law.Text(260_951, 2.341, 2.367, 3.327)
SECONDS = [30, 60, 120, 240, 480, 960, 3600, 28800]


def speed(size: law.Size) -> float:
    """Of two quiet cores."""
    return 1e11 / (6 * size.multiplied)


@pytest.mark.parametrize("text", [PYTHON, NOTES])
def test_more_time_buys_more_and_larger_models(text: law.Text):
    sizes = [law.choose(text, seconds, speed, {}) for seconds in SECONDS]
    assert all(later.bits_per_byte <= 1.002 * sooner.bits_per_byte for sooner, later in itertools.pairwise(sizes))
    assert all(size.low < size.bits_per_byte < size.high for size in sizes)
    multiplied = [size.multiplied for size in sizes]
    assert multiplied == sorted(multiplied)
    assert multiplied[-1] > 2 * multiplied[0]
    assert all(size.passes < 1.1 * law.MOST_PASSES for size in sizes)
    assert all(size.tokens / speed(size) <= 1.03 * seconds for size, seconds in zip(sizes, SECONDS, strict=True))


@pytest.mark.parametrize(
    ("times", "error"), [(1, law.SHORT_RANGE), (2, law.RANGE), (4, law.PILOT_RANGE), (8, law.PILOT_RANGE)]
)
def test_a_longer_pilot_has_a_narrower_range(times: int, error: float):
    pilot = law.pilot_of(PYTHON, {}, times)
    bits = law.bits_per_byte(PYTHON, pilot)
    text = law.leveled(PYTHON, pilot, bits * math.exp((1 - law.PACE) / law.PACE_GROWS), bits)
    assert (text.level, text.pace) == pytest.approx((1.0, 1.0))
    near, far = (law.train(text, next(law.candidates(text)), tokens, {}) for tokens in (2e6, 2e7))
    assert [round(1 - size.low / size.bits_per_byte, 2) for size in (near, far)] == [error, max(error, law.RANGE)]
    assert law.train(PYTHON, near, 2e6, {}).low == pytest.approx((1 - law.UNTRIED_RANGE) * near.bits_per_byte, rel=0.02)
    few = law.train(replace(text, bytes=60_000), near, 1e5, {})  # 60 kB of names, by characters: 27 % off
    assert 1 - few.low / few.bits_per_byte == pytest.approx(law.SMALL_RANGE)
    assert pilot.tokens == pytest.approx(times * 2**17, rel=0.05)


def test_a_little_more_speed_seldom_changes_the_choice():
    shapes = [
        {
            (size.n_layer, size.n_embd, size.batch_tokens)
            for size in (law.choose(PYTHON, s, speed, {}), law.choose(PYTHON, 1.03 * s, speed, {}))
        }
        for s in range(30, 3000, 30)
    ]
    assert sum(len(both) > 1 for both in shapes) <= 0.25 * len(shapes)


def test_what_is_given_is_kept():
    size = law.choose(PYTHON, 60, speed, {"n_layer": 7, "dropout": 0.05, "steps": 11})
    assert (size.n_layer, size.dropout, size.steps) == (7, 0.05, 11)
    narrow, wide = (law.choose(PYTHON, 600, speed, {"n_embd": width}) for width in (120, 520))
    assert (narrow.vocab_size, wide.vocab_size) == (4096, 8192)  # as of the widths nearest to it, for this text


def test_small_models_and_two_layers_for_a_large_text_have_an_output_layer_of_their_own_and_count_it():
    small, large = (law.choose(PYTHON, seconds, speed, {}) for seconds in (20, 3600))
    wide, of_notes = (law.choose(text, 20, speed, {"n_layer": 2, "n_embd": 192}) for text in (PYTHON, NOTES))
    assert [size.tied for size in (small, large, wide, of_notes)] == [False, True, False, True]
    assert wide.parameters == wide.multiplied + wide.vocab_size * wide.n_embd
    assert large.parameters == large.multiplied


def test_a_small_text_is_regularized_and_has_a_smaller_vocabulary():
    size, once = (law.choose(text, 60, speed, {}) for text in (NOTES, PYTHON))
    assert size.passes > 3 > 1 > once.passes
    assert size.weight_decay > 0.3 > 0.15 > once.weight_decay
    # A weight forgets its past at the same rate in each pass.
    assert size.weight_decay * size.matrix_lr * size.steps / size.passes == pytest.approx(law.DECAY, rel=0.03)
    assert {size.vocab_size for size in law.candidates(NOTES)} == {2048}
    assert max(size.vocab_size for size in law.candidates(PYTHON)) == 8192
    shortest = law.Text(LEAST_BYTES, 2.5, 3.0)
    assert {size.vocab_size for size in law.candidates(shortest)} == {512}  # bpe has 256 bytes and end-of-text at least
    assert {size.block_size for size in law.candidates(shortest)} == {128}  # its validation text fills no longer one


def test_weights_are_averaged_where_a_text_is_seen_often_but_not_in_a_pilot():
    once = law.choose(PYTHON, 60, speed, {})
    often = law.train(NOTES, once, 6 * NOTES.bytes / NOTES.bytes_of(1, once.vocab_size), {})
    large = law.train(PYTHON, once, 6 * PYTHON.bytes / PYTHON.bytes_of(1, once.vocab_size), {})
    pilot = law.pilot_of(NOTES, {}, 8)
    assert min(often.passes, large.passes, pilot.passes) > law.FEW_PASSES
    few = law.train(PYTHON, once, 3.5 * PYTHON.bytes / PYTHON.bytes_of(1, once.vocab_size), {})
    assert (few.average_fraction, few.bpe_dropout, few.beta2) == (0.4, 0.0, 0.99)
    assert [size.average_fraction for size in (once, often, large, pilot)] == [0.0, 0.4, 0.4, 0.0]
    assert [size.final_lr_fraction for size in (once, often, large, pilot)] == [0.0, 0.2, 0.2, 0.0]
    assert [size.bpe_dropout for size in (once, often, large, pilot)] == [0.0, 0.05, 0.0, 0.0]
    assert [size.beta2 for size in (once, often, large, pilot)] == [0.99, 0.95, 0.99, 0.95]
    for size in (once, replace(once, tied=True)):
        assert law.bits_per_byte(PYTHON, size) < law.bits_per_byte(PYTHON, replace(size, beta2=0.95))
    without = law.choose(NOTES, 60, speed, {"average_fraction": 0.0})
    assert (without.average_fraction, without.final_lr_fraction) == (0.0, 0.0)
    assert often.bits_per_byte < law.bits_per_byte(NOTES, replace(often, average_fraction=0.0))


def test_no_budget_ends_early_because_a_fifth_pass_looks_worse():
    essays = law.Text(10_300_000, 1.57, 1.78, 1.95)
    for seconds in range(1000, 3000, 200):
        size = law.choose(essays, seconds, speed, {})
        assert size.tokens / speed(size) > 0.9 * seconds


def test_a_7_gram_that_learns_faster_than_a_gpt_can_is_not_followed():
    copies = law.Text(10**6, 1.9, 1.5, 3.3)
    assert copies.seven_gram(10**5) == pytest.approx(1.9 * 10**law.MOST_SLOPE)
    assert PYTHON.seven_gram(PYTHON.bytes / law.PART) == pytest.approx(1.982)


FOLDER = Path(__file__).parents[3] / "benchmarks"
TEXTS = {row["text"]: row for row in csv.DictReader((FOLDER / "law_texts.csv").open())}
RUNS = list(csv.DictReader((FOLDER / "law_runs.csv").open()))


def text_and_size(row: dict[str, str]) -> tuple[law.Text, law.Size]:
    """The text and the size of a measured run."""
    of = TEXTS[row["text"]]
    numbers = {field.name: float(row[field.name]) for field in fields(law.Size) if field.name in row}
    xz = float(of["xz"]) if row["init"] == "induction" else math.inf  # the law before the models began to copy
    repeats = float(of["repeats"]) if of["repeats"] else None
    text = law.Text(int(of["bytes"]), float(of["kneser_ney"]), xz, float(of["kneser_ney_part"]), repeats=repeats)
    bytes_seen = numbers["passes"] * text.bytes
    usual = text.bytes_of(numbers["steps"] * numbers["batch_tokens"], int(row["vocab_size"]))
    return replace(text, density=bytes_seen / usual), law.Size(**numbers)  # type: ignore[arg-type]


def forecast(row: dict[str, str]) -> float:
    """The bits per byte of a run by the law alone."""
    return law.bits_per_byte(*text_and_size(row))


def errors_with_pilots(steps: int, pace: bool = True) -> dict[str, list[float]]:
    """The relative errors of forecasts with pilots of so many steps, by text."""
    pilots = {row["text"]: row for row in RUNS if row["halfway"] and 0.9 < int(row["steps"]) / steps < 1.1}
    errors: dict[str, list[float]] = {name: [] for name in pilots}
    for row in RUNS:
        if row["note"] == "foretold" and row["text"] in pilots:
            (text, size), (_, pilot) = text_and_size(row), text_and_size(pilots[row["text"]])
            halfway, bits = (float(pilots[row["text"]][name]) for name in ("halfway", "bits"))
            text = law.leveled(text, pilot, halfway, bits)
            if not pace:
                text = replace(text, pace=1.0, level=1.0)
                text = replace(text, level=bits / law.bits_per_byte(text, pilot))
            errors[row["text"]].append(abs(law.bits_per_byte(text, size) / float(row["bits"]) - 1))
    return errors


def share_within(limit: float, steps: int, pace: bool = True) -> float:
    """How many of the forecasts are so near, all texts alike."""
    errors = errors_with_pilots(steps, pace).values()
    return sum(sum(error < limit for error in of_text) / len(of_text) for of_text in errors) / len(errors)


def test_copying_is_for_two_layers_and_texts_that_repeat_themselves():
    def saved(repeats: float | None, layers: int, tokens: float) -> float:
        size = law.train(PYTHON, replace(next(law.candidates(PYTHON)), n_layer=layers), tokens, {})
        return law.copied(replace(PYTHON, repeats=repeats), size)

    assert 0 < saved(0.2, 2, 2e7) == saved(0.4, 2, 3e7) < saved(0.4, 9, 3e7) < law.MOST_COPIED * (1 + law.DEEPER)
    assert 0 < saved(0.1, 2, 3e5) < saved(0.1, 2, 6e5) < saved(0.1, 2, 2e6) < saved(0.15, 2, 2e6)
    assert saved(0.0, 2, 5e6) == saved(0.1, 1, 5e6) == saved(0.1, 2, 3e4) == 0
    assert saved(None, 2, 5e6) == pytest.approx(saved(0.44 - 0.35 * PYTHON.xz / PYTHON.kneser_ney, 2, 5e6))


def test_a_longer_context_saves_more_of_a_text_that_repeats_itself():
    pairs = []
    for row in RUNS:
        if row["note"] == "context" and int(row["block_size"]) > law.NEAR:
            same = ("text", "n_layer", "n_embd", "tied", "note")
            near = next((r for r in RUNS if r["block_size"] == "128" and all(r[k] == row[k] for k in same)), None)
            if near:
                expected, came = (f(row) / f(near) for f in (forecast, lambda r: float(r["bits"])))
                pairs.append((expected / came - 1, law.far(*text_and_size(row))))
    assert len(pairs) > 15
    assert all(abs(error) < 0.045 for error, _ in pairs)
    assert max(saved for _, saved in pairs) > 0.09 > 0.01 > min(saved for _, saved in pairs)


def test_of_the_sizes_measured_in_equal_time_the_law_takes_one_near_the_best():
    groups: dict[str, list[dict[str, str]]] = {}
    for row in RUNS:
        if row["note"] in ("heads", "short", "16min", "3e14 FLOPs", "6e14 FLOPs", "1e15 FLOPs"):
            groups.setdefault(row["equal_flops"], []).append(row)
    assert sum(len(rows) > 3 for rows in groups.values()) > 5
    for rows in groups.values():
        assert float(min(rows, key=forecast)["bits"]) < 1.013 * min(float(row["bits"]) for row in rows)


def test_the_constants_fit_the_measurements():
    rows = [row for row in RUNS if row["fitted"] == "yes" and row["init"] == "normal"]
    fitted = sorted(abs(law.bits_per_byte(*text_and_size(row)) / float(row["bits"]) - 1) for row in rows)
    assert fitted[int(0.9 * len(fitted))] < law.RANGE


def test_the_longer_a_pilot_the_nearer_the_forecast():
    assert all(len(errors_with_pilots(steps)) > 20 for steps in (128, 256, 512))
    near = [share_within(0.03, steps) for steps in (128, 256, 512)]
    assert near == sorted(near)
    assert near[-1] > 0.75
    assert share_within(0.05, 512) > 0.9
    ranges = {128: law.SHORT_RANGE, 256: law.RANGE, 512: law.PILOT_RANGE, 1024: law.PILOT_RANGE}
    assert all(share_within(error, steps) > 0.9 for steps, error in ranges.items())


def test_the_pace_of_a_text_brings_forecasts_nearer():
    for limit, steps, gain in ((0.03, 256, 0.05), (0.05, 256, 0.0), (0.03, 512, 0.1), (0.05, 512, 0.05)):
        assert share_within(limit, steps) > share_within(limit, steps, pace=False) + gain
    pilot = law.pilot_of(NOTES, {}, times=4)
    paces = [law.leveled(NOTES, pilot, halfway, 3.0).pace for halfway in (2.9, 3.2, 3.4, 3.6, 9.0)]
    assert paces == sorted(paces)
    assert (paces[0], paces[-1]) == law.PACES
    assert law.leveled(NOTES, pilot, 0.0, 0.0).pace == law.PACES[0]  # of one line, thousands of times


def test_between_sizes_of_1e15_flops_the_law_sees_what_was_measured():
    small, middle, large = (forecast(row) for row in RUNS if row["note"] == "1e15 FLOPs")
    assert 0.99 < small / middle < 1.01  # 1.003 was measured
    assert large > 1.02 * middle  # 1.040 was measured
