"""The interval holds what it says: of documents, of a text alike over any distance, with one seed and several."""

import numpy as np
import pytest

from minigpt.evaluation.compare import plus_minus, scope, verdict
from minigpt.evaluation.interval import Difference, difference, t_quantile, too_few

PAIRS, UNITS, LEVEL = 200, 400, 0.95
UNIT = "nats per token"


def alike(rng: np.random.Generator, *shape: int, fall: float = 0.5) -> np.ndarray:
    """Standard normal units whose mean's variance falls with their number to the power `fall`, by their spectrum."""
    frequencies = np.fft.rfftfreq(8 * UNITS)[1:]
    spectrum = frequencies ** ((fall - 1) / 2)
    waves = spectrum * (
        rng.standard_normal((2, *shape, len(frequencies))) * np.array([1, 1j]).reshape(2, *[1] * (len(shape) + 1))
    ).sum(0)
    noise = np.fft.irfft(np.concatenate([np.zeros((*shape, 1)), waves], -1))[..., :UNITS]
    return noise / noise.std()


def pairs(seed: int, runs: tuple[int, int], truth: float, *, fall: float, seed_spread: float = 0.0) -> list[Difference]:
    """Simulated comparisons: a text that is hard here and easy there, what a side finds hard, and seeds."""
    rng = np.random.default_rng(seed)
    text, taste = rng.standard_normal((PAIRS, 1, UNITS)) * 3, alike(rng, PAIRS, 1, fall=fall)
    a, b = (rng.standard_normal((PAIRS, count, 1)) * seed_spread + text for count in runs)
    sizes = np.full(UNITS, 64.0)
    losses = zip(a * sizes, (b + taste + truth) * sizes, strict=True)
    return [difference(a, b, sizes, drawn=fall == 1.0) for a, b in losses]


def alarms(results: list[Difference], truth: float = 0.0) -> int:
    return sum(abs(result.value - truth) > result.half_width(LEVEL) for result in results)


@pytest.mark.parametrize("truth", [0.0, -0.8])
@pytest.mark.parametrize(("fall", "least", "most"), [(1.0, 3, 19), (0.5, 0, 14)])  # 5 % of 200, and at most 7 %
def test_of_two_checkpoints_as_many_intervals_miss_as_stated(truth, fall, least, most):
    assert least <= alarms(pairs(2, (1, 1), truth, fall=fall), truth) <= most


def misses(seed: int, *, drawn: bool) -> int:
    """How often 40 of 400 documents miss the difference of all: of unequal length, and neighbours are alike."""
    rng, count = np.random.default_rng(seed), 0
    for taste in alike(rng, PAIRS, fall=0.4):
        sizes, first = np.exp(rng.standard_normal(UNITS)), rng.integers(UNITS - 40)
        some = np.sort(rng.choice(UNITS, 40, replace=False)) if drawn else np.arange(first, first + 40)
        losses = taste * sizes
        result = difference(np.zeros((1, 40)), losses[None, some], sizes[some], drawn=drawn)
        count += abs(result.value - losses.sum() / sizes.sum()) > result.half_width(LEVEL)
    return count


def test_documents_drawn_at_random_are_independent_though_neighbours_are_alike():
    assert 3 <= misses(3, drawn=True) <= 14


def test_neighbouring_documents_are_not_independent():
    assert misses(3, drawn=False) <= 14  # ten blocks, taken as independent, miss 42


@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (1, 4)])
@pytest.mark.parametrize("seed_spread", [0.02, 0.5])
def test_equal_settings_are_called_different_as_often_as_stated(runs, seed_spread):
    assert alarms(pairs(11, runs, 0.0, fall=1.0, seed_spread=seed_spread)) <= 19


def test_documents_of_unequal_length_count_by_their_tokens():
    sizes = np.array([10.0] * 39 + [1.0])
    a = np.full((1, 40), 5.0) * sizes
    b = a + np.array([0.0] * 39 + [4.0])
    assert difference(a, b, sizes, drawn=True).value == pytest.approx(4 / 391)
    assert difference(a, a * 1.1, sizes, drawn=True).half_width(LEVEL) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("sizes", "documents", "reason"),
    [
        ([9.0] * 9, True, "there are 9 documents; at least 10 are wanted"),
        ([9.0] * 10, True, ""),
        ([1.0] * 40 + [40.0], True, "a few of the 41 documents hold most of the text: they count as 3.9 of 10"),
        ([9.0] * 99, False, "there are 99 documents; at least 100 are wanted"),
        ([9.0] * 100, False, ""),
    ],
)
def test_too_little_to_judge_by_is_said(sizes, documents, reason):
    assert too_few(np.array(sizes), documents=documents, name="documents") == reason


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
    assert text == "cannot tell: B - A = 0.010 +- 0.020 nats per token; about 3.9 times as much text would"
    assert "they are equal" in verdict("A", "B", Difference(0.0, (1, 1), None, 0.0, 100), UNIT)
    assert "these two checkpoints, not the settings" in scope(Difference(0.1, (1, 1), None, 1e-4, 9), "A", "B")
    assert "B has one seed" in scope(Difference(0.1, (3, 1), 1e-4, 1e-4, 9), "A", "B")
    passage = Difference(0.1, (3, 3), 6e-4, 1.0, 9, drawn=False)  # t with 4 degrees of freedom: 2.776 * 0.02
    assert "On this very text, over seeds alone, B - A = 0.100 +- 0.056." in scope(passage, "A", "B")
    assert "documents drawn at random may" in verdict("A", "B", Difference(0.1, (1, 1), None, 1.0, 9, False), UNIT)
    assert plus_minus(0.0123, 0.0042) == "0.0123 +- 0.0042"
    assert plus_minus(-2e-6, 3e-7) == "-0.00000200 +- 0.00000030"
