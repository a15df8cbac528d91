"""How certain the difference of two sides is, over texts and over seeds.

There are two sources of variance. Texts: other documents would give another difference. The jackknife, which leaves out
one document at a time, estimates this variance, but only if the documents were drawn at random: neighbouring documents,
and passages of one text, are alike over any distance. Seeds: another seed of the same settings gives other weights. A
source that can't be judged is named, and no interval is given for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
MIN_DOCUMENTS = 10


@dataclass(frozen=True)
class Difference:
    """Mean loss of side B minus that of side A, negative when B is better."""

    value: float  # per token (or byte)
    seeds: tuple[int, int]  # runs of A and of B
    seed_variance: float | None  # of one run's mean loss, over seeds, alike on both sides; None with one seed a side
    text_variance: float | None  # of `value`, over texts; None if it can't be judged: for this very text it is 0
    text_freedom: float = 1.0  # degrees of freedom of that estimate
    own_variances: Sequence[float] | None = None  # over seeds, of each side alone; None if they are alike

    def half_width(self, level: float, *, more_seeds: int = 0) -> float | None:
        """Return half the width of the interval that holds the truth so often, as if each side had `more_seeds`.

        None if neither seeds nor texts can be judged. It is between two widths, by the mean of their squares: what each
        source would have alone, squared and summed, with one variance for both sides' seeds (too wide where texts and
        seeds both matter, too narrow where one side's seeds vary more), and one t for the sum of all variances, of each
        side's seeds alone (Welch 1947; too narrow: two seeds that are alike by chance seem known exactly).
        """
        text = [] if self.text_variance is None else [(self.text_variance, self.text_freedom)]
        alike, own = list(text), list(text)
        if self.seed_variance is not None:
            a, b = counts = [count + more_seeds for count in self.seeds]
            alike.append((self.seed_variance * (1 / a + 1 / b), a + b - 2))
            variances = self.own_variances or (self.seed_variance, self.seed_variance)
            own += [(variance / n, n - 1 or a + b - 2) for variance, n in zip(variances, counts, strict=True)]
        if not own:
            return None
        whole = sum(variance for variance, _ in own)
        freedom = whole**2 / (sum(variance**2 / freedom for variance, freedom in own) or 1.0)
        squares = [v * t_quantile((1 + level) / 2, freedom) ** 2 for v, freedom in [*alike, (whole, freedom)]]
        return math.sqrt(sum(squares) / 2)

    def seeds_missing(self, level: float, *, most: int = 100) -> int | None:
        """Return how many more seeds a side would tell the sides apart if `value` is right; None if none would."""
        enough = (n for n in range(1, most + 1) if (self.half_width(level, more_seeds=n) or 0) < abs(self.value))
        return next(enough, None)


def too_few(sizes: Array, *, name: str, of: Array | None = None) -> str:
    """Return why units of these sizes say too little about others; "" if they say enough.

    `of` are the sizes of all documents, these among them: where one has much of the variance, a sample often lacks it.
    """
    if len(sizes) < MIN_DOCUMENTS:
        return f"there are {len(sizes):,} {name}; at least {MIN_DOCUMENTS} are needed"
    # So many of equal length would tell as much. Source: Kish 1965, "Survey Sampling", section 11.7.
    whole = sizes if of is None else of
    effective = sizes.sum() * min(sizes.sum() / (sizes**2).sum(), whole.sum() / (whole**2).sum())
    if effective < MIN_DOCUMENTS - 0.01:
        return f"these {len(sizes):,} {name} count as {effective:.1f} of equal length; {MIN_DOCUMENTS} are needed"
    if whole.max() ** 2 > 1.01 * (whole**2).sum() / MIN_DOCUMENTS:  # with a third, intervals held in 75 of 100
        return f"one of the {name} is too long: the others do not show its effect"
    return ""


def difference(a: Array, b: Array, sizes: Array, *, drawn: bool) -> Difference:
    """Compare two sides on the same units of a text.

    Args:
        a: (runs of A, units): each run's loss summed over each unit.
        b: (runs of B, units).
        sizes: (units,): tokens (or bytes) of each.
        drawn: whether the units were drawn at random, and `too_few` returns nothing for them.
    """
    between = b.mean(axis=0) - a.mean(axis=0)
    seed_variance, own, spare = None, None, len(a) + len(b) - 2
    deviations = [run - side.mean(axis=0) for side in (a, b) for run in side]
    if spare:
        seed_variance = sum((run.sum() / sizes.sum()) ** 2 for run in deviations) / spare
        means = [side.sum(axis=1) / sizes.sum() for side in (a, b)]
        own = [float(side.var(ddof=1)) if len(side) > 1 else seed_variance for side in means]
    text_variance, freedom = _over_texts(between, sizes) if drawn else (None, 1.0)
    if text_variance is not None and spare:
        # The interaction of seeds and texts is in the variance over seeds already.
        twice = sum(_over_texts(run, sizes)[0] for run in deviations) / spare * (1 / len(a) + 1 / len(b))
        text_variance = max(0.0, text_variance - twice)
    value = float(between.sum() / sizes.sum())
    return Difference(value, (len(a), len(b)), seed_variance, text_variance, freedom, own)


def _over_texts(x: Array, sizes: Array) -> tuple[float, float]:
    """Return the variance of x.sum() / sizes.sum(), over texts, and the degrees of freedom of that estimate.

    It is the jackknife's: what leaving out each unit would change, squared and summed. Sources: Miller 1974, "The
    Jackknife - A Review"; for the degrees of freedom Satterthwaite 1946, each square's variance from its own square.
    """
    changes = (x - x.sum() / sizes.sum() * sizes) / (sizes.sum() - sizes)
    variance = (changes**2).sum()
    freedom = 2 * variance**2 / (changes**4).sum() if variance else len(x) - 1.0
    return float(variance), float(freedom)


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution, for a probability above 1/2.

    With t = sqrt(freedom) tan(angle) the density of the angle is cos(angle)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos((angles[1:] + angles[:-1]) / 2) ** (max(freedom, 1.0) - 1)
    share = 0.5 + 0.5 * np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return float(math.sqrt(max(freedom, 1.0)) * np.tan(np.interp(probability, share, angles)))
