"""How sure the difference of two sides is: blocks of neighbouring units of the text, and seeds.

There are two sources of chance. The text: another text of its kind would have other documents (or windows, where it has
no documents), and neighbours are similar, so blocks of them are resampled and not single ones. The seeds: another seed
of the same settings gives other weights. With one seed a side only the first source can be judged, and the difference
is that of two checkpoints.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
MIN_BLOCKS = 10  # independent blocks of a text below which nothing is said


@dataclass(frozen=True)
class Difference:
    """Mean loss of side B minus that of side A, negative when B is better."""

    value: float  # per token (or byte)
    seeds: tuple[int, int]  # runs of A and of B
    seed_variance: float | None  # of one run's mean loss, over seeds; None with one seed a side
    text_variance: float  # of `value`, over texts
    blocks: float  # independent ones, from which the text variance was estimated
    units: int = 0

    def half_width(self, level: float, *, more_seeds: int = 0) -> float:
        """Return half the width of the interval around `value`.

        Args:
            level: how often such intervals hold the truth, like 0.95.
            more_seeds: computed as if each side had so many more seeds.
        """
        sources = [(self.text_variance, self.blocks - 1)]
        if self.seed_variance is not None:
            a, b = (count + more_seeds for count in self.seeds)
            sources.append((self.seed_variance * (1 / a + 1 / b), a + b - 2))
        total = sum(variance for variance, _ in sources)
        if total == 0:
            return 0.0
        # Source: Welch 1947, Satterthwaite 1946: the degrees of freedom of a sum of estimated variances.
        freedom = total**2 / sum(variance**2 / degrees for variance, degrees in sources)
        return t_quantile((1 + level) / 2, freedom) * math.sqrt(total)

    def seeds_missing(self, level: float, *, most: int = 100) -> int | None:
        """Return how many more seeds a side would tell the sides apart if `value` is right; None if none would."""
        if self.seed_variance is None:
            return None
        enough = (n for n in range(1, most + 1) if self.half_width(level, more_seeds=n) < abs(self.value))
        return next(enough, None)

    def text_missing(self, level: float) -> float:
        """Return how many times as much text would tell two checkpoints apart if `value` is right."""
        return (t_quantile((1 + level) / 2, self.blocks - 1) / self.value) ** 2 * self.text_variance


def too_few(differences: Iterable[Difference], name: str) -> str:
    """Return why a text says too little to judge these differences; "" if it says enough."""
    worst = min(differences, key=lambda found: found.blocks)
    if worst.blocks >= MIN_BLOCKS:
        return ""
    as_good = f", as good as {worst.blocks:.1f} independent ones" if worst.blocks < worst.units else ""
    return f"there are {worst.units:,} {name}{as_good}; at least {MIN_BLOCKS} are wanted"


def difference(a: Array, b: Array, sizes: Array) -> Difference:
    """Compare two sides on the same units of a text.

    Args:
        a: (runs of A, units): each run's loss summed over each unit.
        b: (runs of B, units).
        sizes: (units,): tokens (or bytes) of each.
    """
    total = sizes.sum()
    between = b.mean(axis=0) - a.mean(axis=0)
    value = between.sum() / total
    length = block_length(between - value * sizes)
    text_variance = _over_texts(between, sizes, length)
    seed_variance = None
    spare = len(a) + len(b) - 2
    if spare:
        # Pooled: the variance over seeds is assumed to be the same on both sides.
        deviations = [run - side.mean(axis=0) for side in (a, b) for run in side]
        seed_variance = sum((run.sum() / total) ** 2 for run in deviations) / spare
        # The interaction of seeds and units is in the variance over seeds already.
        twice = sum(_over_texts(run, sizes, length) for run in deviations) / spare * (1 / len(a) + 1 / len(b))
        text_variance = max(0.0, text_variance - twice)
    equal_units = total**2 / (sizes**2).sum()  # units of unequal sizes say as much as so many equal ones
    blocks = float(equal_units / length)
    return Difference(float(value), (len(a), len(b)), seed_variance, text_variance, blocks, len(sizes))


def _over_texts(x: Array, sizes: Array, length: int) -> float:
    """Return the variance of x.sum() / sizes.sum(), over texts."""
    rest = x - x.sum() / sizes.sum() * sizes  # each window's part in the error of a ratio of sums
    return block_variance(rest, length) * (len(x) / float(sizes.sum())) ** 2


def block_variance(x: Array, length: int) -> float:
    """Return the variance of the mean of x by the circular block bootstrap with infinitely many resamples.

    A resample is len(x) / length blocks, each beginning anywhere; so its mean has the variance of one block's mean,
    divided by their number minus one, since the mean was estimated from the same blocks.

    Source: Politis and Romano 1992, "A circular block-resampling procedure for stationary data".
    """
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([x, x[: length - 1]]))])
    means = (sums[length:] - sums[:-length]) / length
    return float(((means - x.mean()) ** 2).mean() / max(len(x) / length - 1, 1e-9))


def block_length(x: Array) -> int:
    """Return the number of units per block, from how far the correlation of neighbours reaches.

    Twice the length that estimates the variance with the least squared error: blocks that are too short make an
    interval too narrow, while the noise of fewer blocks is in its t quantile.

    Source: Politis and White 2004, "Automatic block-length selection for the dependent bootstrap", corrected by
    Patton, Politis and White 2009.
    """
    n = len(x)
    least, most = math.ceil(n ** (1 / 3)), max(1, n // MIN_BLOCKS)
    lags = min(n - 1, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    centred = x - x.mean()
    covariance = np.array([centred[: n - lag] @ centred[lag:] / n for lag in range(lags + 1)])
    if covariance[0] <= 0:
        return least
    wide = np.abs(covariance[1:] / covariance[0]) > 2 * math.sqrt(math.log10(n) / n)
    run = max(5, math.ceil(math.log10(n)))
    quiet = [lag for lag in range(lags - run + 1) if not wide[lag : lag + run].any()]
    reach = max(1, 2 * (quiet[0] if quiet else int(np.flatnonzero(wide)[-1]) + 1))
    lag = np.arange(1, min(reach, lags) + 1)
    weights = np.clip(2 * (1 - lag / reach), 0, 1) * covariance[lag]
    flat = covariance[0] + 2 * weights.sum()
    slope = 2 * (weights * lag).sum()
    if flat <= 0:
        return least
    return min(most, max(least, math.ceil(2 * (1.5 * slope**2 / flat**2 * n) ** (1 / 3))))


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution, for a probability above 1/2.

    With t = sqrt(freedom) tan(angle) the density of the angle is cos(angle)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos((angles[1:] + angles[:-1]) / 2) ** (max(freedom, 1.0) - 1)
    share = 0.5 + 0.5 * np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return float(math.sqrt(max(freedom, 1.0)) * np.tan(np.interp(probability, share, angles)))
