"""The interval holds what it says: on text whose neighbouring windows are alike, with one seed and with several."""

import math

import numpy as np
import pytest

from minigpt.evaluation.interval import Difference, block_length, block_variance, difference, t_quantile

PAIRS, WINDOWS, LEVEL = 200, 400, 0.95


def alike(rng: np.random.Generator, *shape: int, rho: float = 0.6) -> np.ndarray:
    """Standard normal windows (..., WINDOWS) of which each is like the one before."""
    noise = rng.standard_normal((*shape, WINDOWS + 100))
    for place in range(1, noise.shape[-1]):
        noise[..., place] = rho * noise[..., place - 1] + math.sqrt(1 - rho**2) * noise[..., place]
    return noise[..., 100:]


def pairs(seed: int, runs: tuple[int, int], truth: float, *, seed_spread: float = 0.2) -> list[Difference]:
    """Simulated comparisons: text that is hard here and easy there for all, what each side finds hard, and seeds."""
    rng = np.random.default_rng(seed)
    text, taste = alike(rng, PAIRS, 1) * 3, alike(rng, PAIRS, 1) * 0.3
    sides = [
        text + alike(rng, PAIRS, count) * 0.5 + rng.standard_normal((PAIRS, count, 1)) * seed_spread for count in runs
    ]
    sizes = np.full(WINDOWS, 64.0)
    losses = zip(sides[0] * sizes, (sides[1] + taste + truth) * sizes, strict=True)
    return [difference(a, b, sizes) for a, b in losses]


def binomial_interval(n: int, p: float, level: float = 0.99) -> tuple[int, int]:
    """Counts that a binomial variable lies between with at least this probability, both ends included."""
    chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    upto = np.cumsum(chances)
    tail = (1 - level) / 2
    return int(np.argmax(upto > tail)), int(np.argmax(upto >= 1 - tail))


def test_the_binomial_interval_is_the_one_of_the_tables():
    assert binomial_interval(10, 0.5, 0.95) == (2, 8)
    assert binomial_interval(200, 0.05) == (3, 19)


@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (1, 4)])
@pytest.mark.parametrize("seed_spread", [0.02, 0.5])
def test_false_alarms_over_200_pairs_are_as_many_as_stated(runs, seed_spread):
    low, high = binomial_interval(PAIRS, 1 - LEVEL)
    found = pairs(11, runs, 0.0, seed_spread=seed_spread)
    alarms = sum(abs(each.value) > each.half_width(LEVEL) for each in found)
    assert low <= alarms <= high


def test_false_alarms_of_two_checkpoints_are_as_many_as_stated_and_single_windows_would_give_many_more():
    low, high = binomial_interval(PAIRS, 1 - LEVEL)
    found = pairs(2, (1, 1), 0.0, seed_spread=0.0)
    assert low <= sum(abs(each.value) > each.half_width(LEVEL) for each in found) <= high
    rng = np.random.default_rng(2)
    between = alike(rng, PAIRS)
    naive = np.abs(between.mean(axis=1)) > 1.96 * between.std(axis=1) / math.sqrt(WINDOWS)
    assert naive.sum() > 2 * high


@pytest.mark.parametrize("runs", [(1, 1), (3, 3)])
def test_a_known_difference_is_found_with_its_sign_and_size(runs):
    truth = -0.8
    found = pairs(3, runs, truth, seed_spread=0.0 if runs == (1, 1) else 0.1)
    low, high = binomial_interval(PAIRS, 1 - LEVEL)
    assert low <= sum(abs(each.value - truth) > each.half_width(LEVEL) for each in found) <= high
    told = [each for each in found if abs(each.value) > each.half_width(LEVEL)]
    assert len(told) > 0.95 * PAIRS
    assert all(each.value < 0 for each in told)


def test_the_last_shorter_window_counts_for_less():
    sizes = np.array([10.0] * 39 + [1.0])
    a = np.full((1, 40), 5.0) * sizes
    b = a + np.array([0.0] * 39 + [4.0])
    assert difference(a, b, sizes).value == pytest.approx(4 / 391)
    assert difference(a, a * 1.1, sizes).value == pytest.approx(0.5)
    assert difference(a, a * 1.1, sizes).half_width(LEVEL) == pytest.approx(0, abs=1e-12)
    assert difference(a, a, sizes).half_width(LEVEL) == 0


def test_the_block_variance_is_that_of_many_resamples():
    rng = np.random.default_rng(4)
    x = alike(rng)
    length = 10
    starts = rng.integers(0, WINDOWS, (4000, WINDOWS // length, 1)) + np.arange(length)
    resampled = x[starts % WINDOWS].reshape(4000, -1).mean(axis=1).var()
    assert block_variance(x, length) * (1 - length / WINDOWS) == pytest.approx(resampled, rel=0.08)


def test_blocks_are_longer_where_neighbours_are_alike_for_longer():
    rng = np.random.default_rng(5)
    lengths = [
        np.mean([block_length(x) for x in alike(rng, 20, rho=rho)]) for rho in (0.0, 0.6, 0.9)
    ]  # fmt: skip
    assert lengths[0] < 12 < lengths[1] < 35 < lengths[2] <= WINDOWS / 5


# Source: any table of Student's t.
@pytest.mark.parametrize(
    ("freedom", "wanted"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (30, 2.0423), (10_000, 1.9602)]
)
def test_quantiles_of_students_t(freedom, wanted):
    assert t_quantile(0.975, freedom) == pytest.approx(wanted, abs=2e-4)


def test_seeds_that_are_missing_are_enough_and_one_less_is_not():
    found = Difference(0.01, (2, 2), seed_variance=1e-4, text_variance=1e-6, blocks=50)
    missing = found.seeds_missing(LEVEL)
    assert missing is not None
    assert found.half_width(LEVEL, more_seeds=missing) < 0.01 <= found.half_width(LEVEL, more_seeds=missing - 1)
    assert Difference(0.01, (2, 2), 1e-4, 1e-4, 50).seeds_missing(LEVEL) is None  # the text alone is too short
    assert Difference(0.01, (1, 1), None, 1e-4, 50).seeds_missing(LEVEL) is None
