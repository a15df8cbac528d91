"""The interval holds what it says, of documents drawn at random, over seeds, or both; where it can't, there is none."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from minigpt.evaluation.compare import plus_minus, scope, verdict
from minigpt.evaluation.interval import Difference, difference, t_quantile, too_few

PAIRS, UNITS, LEVEL = 200, 400, 0.95
UNIT = "nats per token"


def pairs(seed: int, runs: tuple[int, int], truth: float, *, drawn: bool = True, spread: float = 0) -> list[Difference]:
    """Simulated comparisons: a text that is hard here and easy there, what a side finds hard, and seeds."""
    rng, sizes = np.random.default_rng(seed), np.full(UNITS, 64.0)
    text, taste = rng.standard_normal((PAIRS, 1, UNITS)) * 3, rng.standard_normal((PAIRS, 1, UNITS)) * drawn
    a, b = (rng.standard_normal((PAIRS, count, 1)) * spread + text for count in runs)
    losses = zip(a * sizes, (b + taste + truth) * sizes, strict=True)
    return [difference(a, b, sizes, drawn=drawn) for a, b in losses]


def alarms(results: list[Difference], truth: float = 0.0) -> int:
    return sum(abs(result.value - truth) > (result.half_width(LEVEL) or 0) for result in results)


@pytest.mark.parametrize("truth", [0.0, -0.8])
def test_of_two_checkpoints_as_many_intervals_miss_as_stated(truth):
    assert 3 <= alarms(pairs(2, (1, 1), truth), truth) <= 19  # 5 % of 200


def sample_misses(seed: int, spread: float, giants: int = 0) -> tuple[int, int]:
    """How many samples of 40 of 400 documents get an interval, and how many of these miss the difference of all.

    Neighbours are alike, lengths unequal, and the few giants have a difference of their own.
    """
    rng, given, missed = np.random.default_rng(seed), 0, 0
    for _ in range(PAIRS):
        sizes = np.exp(rng.standard_normal(UNITS) * spread)
        sizes[:giants] *= 100
        losses = (rng.standard_normal(UNITS).cumsum() / 20 + 3 * (np.arange(UNITS) < giants)) * sizes
        some = rng.choice(UNITS, 40, replace=False)
        if not too_few(sizes[some], name="documents", of=sizes):
            result = difference(np.zeros((1, 40)), losses[None, some], sizes[some], drawn=True)
            given += 1
            missed += abs(result.value - losses.sum() / sizes.sum()) > result.half_width(LEVEL)
    return given, missed


def test_documents_drawn_at_random_are_independent_though_neighbours_are_alike():
    given, missed = sample_misses(3, 0.5)
    assert given == PAIRS
    assert 0.03 <= missed / given <= 0.07


@pytest.mark.parametrize("giants", [4, 15])
def test_a_sample_that_lacks_the_few_documents_with_most_of_the_text_is_too_little(giants):
    assert sample_misses(3, 0.5, giants)[0] == 0  # by their own lengths 134 of 200 would get one, and all miss


def test_without_documents_drawn_at_random_seeds_alone_are_judged():
    assert all(result.half_width(LEVEL) is None for result in pairs(2, (1, 1), 0.0, drawn=False))
    assert 3 <= alarms(pairs(2, (2, 2), 0.0, drawn=False, spread=0.1)) <= 19


@pytest.mark.parametrize(
    ("runs", "spread"), [((2, 2), 0.02), ((2, 2), 0.1), ((2, 2), 0.5), ((3, 3), 0.1), ((1, 4), 0.1)]
)
def test_equal_settings_are_called_different_as_often_as_stated(runs, spread):
    assert alarms(pairs(11, runs, 0.0, spread=spread)) <= 10  # 5 % of 200; with one t for both, two seeds miss 13


@pytest.mark.parametrize(("ratio", "over_texts"), [(1, 1), (1, 2), (4, 0.2), (4, 0.5)])
def test_the_interval_of_two_seeds_a_side_and_texts_holds_its_95_percent(ratio, over_texts):
    of_b = 2 / (1 + ratio)  # variances over seeds: the means differ by 1 of both together
    of_a = ratio * of_b
    squares = [NormalDist().inv_cdf((n + 0.5) / 32) ** 2 for n in range(16)]  # of a normal variable, spread evenly
    held = []
    for own in ((a * of_a, b * of_b) for a in squares for b in squares):
        half = Difference(0.0, (2, 2), sum(own) / 2, over_texts**2, 300.0, own).half_width(LEVEL) or 0
        held.append(math.erf(half / math.sqrt(2 * (1 + over_texts**2))))
    assert 0.935 <= np.mean(held) <= 0.97  # by the root of the summed squares up to 0.976, by Welch's t from 0.925 on


def test_documents_of_unequal_length_count_by_their_tokens():
    sizes = np.array([10.0] * 39 + [1.0])
    a = np.full((1, 40), 5.0) * sizes
    b = a + np.array([0.0] * 39 + [4.0])
    assert difference(a, b, sizes, drawn=True).value == pytest.approx(4 / 391)
    assert difference(a, a * 1.1, sizes, drawn=True).half_width(LEVEL) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([9.0] * 9, "there are 9 documents; at least 10 are needed"),
        ([9.0] * 10, ""),
        ([1.0] * 400 + [20.0], "one of the documents is too long: the others do not show its effect"),
        ([1.0] * 40 + [40.0], "these 41 documents count as 3.9 of equal length; 10 are needed"),
    ],
)
def test_too_little_to_judge_by_is_said(sizes, reason):
    assert too_few(np.array(sizes), name="documents") == reason


# Source: any table of Student's t.
@pytest.mark.parametrize(("freedom", "wanted"), [(1, 12.7062), (3, 3.1824), (9, 2.2622), (10_000, 1.9602)])
def test_quantiles_of_students_t(freedom, wanted):
    assert t_quantile(0.975, freedom) == pytest.approx(wanted, abs=2e-4)


def test_seeds_that_are_missing_are_enough_and_one_less_is_not():
    result = Difference(0.01, (2, 2), seed_variance=1e-4, text_variance=1e-6, text_freedom=49)
    missing = result.seeds_missing(LEVEL)
    assert missing is not None
    assert result.half_width(LEVEL, more_seeds=missing) < 0.01 <= result.half_width(LEVEL, more_seeds=missing - 1)
    assert Difference(0.01, (2, 2), 1e-4, 1e-4, 50).seeds_missing(LEVEL) is None  # the text alone is too short


def test_the_verdict_names_the_better_side_or_what_would_tell():
    result = Difference(-0.012, (3, 3), seed_variance=1e-6, text_variance=1e-6, text_freedom=99)
    half = result.half_width(LEVEL)
    assert verdict("A", "B", result, UNIT) == f"B is better by 0.0120 +- {half:.4f} nats per token"
    assert verdict("A", "B", Difference(0.012, (3, 3), 1e-6, 1e-6, 100), UNIT).startswith("A is better by 0.0120 +- ")
    assert "seeds a side would" in verdict("A", "B", Difference(0.01, (2, 2), 1e-4, 1e-6, 100), UNIT)
    assert "more seeds alone would not" in verdict("A", "B", Difference(0.001, (2, 2), 1e-4, 1e-4, 100), UNIT)
    text = verdict("A", "B", Difference(0.01, (1, 1), None, 1e-4, 100), UNIT)
    assert text == "cannot tell: B - A = 0.010 +- 0.020 nats per token; about 3.9 times as much text would decide it"
    assert verdict("A", "B", Difference(0.0, (1, 1), None, 0.0, 100), UNIT) == "A and B are equal"
    assert verdict("A", "B", Difference(0.0, (1, 1), None, None), UNIT) == "A and B are equal on this very text"
    assert "these two checkpoints, not the settings" in scope(Difference(0.1, (1, 1), None, 1e-4, 9), "A", "B")
    assert "B has one seed" in scope(Difference(0.1, (3, 1), 1e-4, 1e-4, 9), "A", "B")
    passage = Difference(0.1, (3, 3), 6e-4, None)  # t with 4 degrees of freedom: 2.776 * 0.02
    assert verdict("A", "B", passage, UNIT) == "A is better by 0.100 +- 0.056 nats per token on this very text"
    assert "This judges the settings, on this very text." in scope(passage, "A", "B")
    one = verdict("A", "B", Difference(0.1, (1, 1), None, None), UNIT)
    assert one.startswith("A is better by 0.1000 nats per token on this very text; more documents drawn at random")
    assert plus_minus(0.0123, 0.0042) == "0.0123 +- 0.0042"
    assert plus_minus(-2e-6, 3e-7) == "-0.00000200 +- 0.00000030"
