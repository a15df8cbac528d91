"""How sure the difference of two sides is: the text, and seeds.

There are two sources of chance. The text: another text of its kind would have other documents, or other passages where
it has no documents that were drawn at random. How much their difference scatters is told by leaving out one document,
or one of ten passages, at a time. The seeds: another seed of the same settings gives other weights. With one seed a
side only the first source can be judged, and the difference is that of two checkpoints.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
BLOCKS = 10  # passages into which a text is cut that was not drawn at random
MIN_DOCUMENTS, MIN_WINDOWS = 10, 100
# The variance of a mean falls with the length of the text to this power: to 1 if its documents were drawn at random.
# Passages of one text, and neighbouring documents, are alike over any distance: on five real texts 0.3 covers 92 to
# 100 of 100 (docs/EVALUATION.md). Source: Beran 1994, "Statistics for Long-Memory Processes", section 1.1.
DRAWN_FALL, PASSAGES_FALL = 1.0, 0.3


@dataclass(frozen=True)
class Difference:
    """Mean loss of side B minus that of side A, negative when B is better."""

    value: float  # per token (or byte)
    seeds: tuple[int, int]  # runs of A and of B
    seed_variance: float | None  # of one run's mean loss, over seeds; None with one seed a side
    text_variance: float  # of `value`, over texts
    text_freedom: float  # degrees of freedom of that estimate
    drawn: bool = True  # whether the parts of the text were drawn at random

    def half_width(self, level: float, *, more_seeds: int = 0) -> float:
        """Return half the width of the interval that holds the truth so often, as if each side had `more_seeds`."""
        sources = [(self.text_variance, self.text_freedom)]
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
        """Return how many times as many documents would tell two checkpoints apart if `value` is right."""
        return float((self.half_width(level) / abs(self.value)) ** 2)


def too_few(sizes: Array, *, documents: bool, name: str) -> str:
    """Return why units of these sizes say too little to judge by; "" if they say enough."""
    wanted = MIN_DOCUMENTS if documents else MIN_WINDOWS
    if len(sizes) < wanted:
        return f"there are {len(sizes):,} {name}; at least {wanted} are wanted"
    # So many of equal length would tell as much. Source: Kish 1965, "Survey Sampling", section 11.7.
    effective = sizes.sum() ** 2 / (sizes**2).sum()
    if documents and effective < wanted - 0.01:
        return f"a few of the {len(sizes):,} {name} hold most of the text: they count as {effective:.1f} of {wanted}"
    return ""


def difference(a: Array, b: Array, sizes: Array, *, drawn: bool) -> Difference:
    """Compare two sides on the same units of a text; `too_few` must return nothing for them.

    Args:
        a: (runs of A, units): each run's loss summed over each unit.
        b: (runs of B, units).
        sizes: (units,): tokens (or bytes) of each.
        drawn: whether the units were drawn at random; else neighbours are alike.
    """
    if not drawn:
        ends = np.concatenate([[0.0], np.cumsum(sizes)])
        edges = np.unique([np.abs(ends - place).argmin() for place in np.linspace(0, ends[-1], BLOCKS + 1)])
        a, b, sizes = (np.add.reduceat(x, edges[:-1], axis=-1) for x in (a, b, sizes))
    fall = DRAWN_FALL if drawn else PASSAGES_FALL
    between = b.mean(axis=0) - a.mean(axis=0)
    value = between.sum() / sizes.sum()
    text_variance, text_freedom = _over_texts(between, sizes, fall)
    seed_variance = None
    spare = len(a) + len(b) - 2
    if spare:
        # Pooled: the variance over seeds is assumed to be the same on both sides.
        deviations = [run - side.mean(axis=0) for side in (a, b) for run in side]
        seed_variance = sum((run.sum() / sizes.sum()) ** 2 for run in deviations) / spare
        # The interaction of seeds and texts is in the variance over seeds already.
        twice = sum(_over_texts(run, sizes, fall)[0] for run in deviations) / spare * (1 / len(a) + 1 / len(b))
        text_variance = max(0.0, text_variance - twice)
    return Difference(float(value), (len(a), len(b)), seed_variance, text_variance, text_freedom, drawn)


def _over_texts(x: Array, sizes: Array, fall: float) -> tuple[float, float]:
    """Return the variance of x.sum() / sizes.sum(), over texts, and the degrees of freedom of that estimate.

    It is the jackknife's: what leaving out each unit would change, squared and summed. The variance falls with the
    number n of units to the power `fall`, and their own mean, from which they deviate, varies as well: n - 1 becomes
    n ** fall - 1. Sources: Miller 1974, "The Jackknife - A Review"; the degrees of freedom as in `half_width`, with
    the variance of each square estimated from its own square.
    """
    changes = (x - x.sum() / sizes.sum() * sizes) / (sizes.sum() - sizes)
    variance = (changes**2).sum()
    freedom = 2 * variance**2 / (changes**4).sum() if variance else len(x) - 1.0
    return float(variance * (len(x) - 1) / (len(x) ** fall - 1)), float(freedom)


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution, for a probability above 1/2.

    With t = sqrt(freedom) tan(angle) the density of the angle is cos(angle)^(freedom - 1).
    """
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos((angles[1:] + angles[:-1]) / 2) ** (max(freedom, 1.0) - 1)
    share = 0.5 + 0.5 * np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return float(math.sqrt(max(freedom, 1.0)) * np.tan(np.interp(probability, share, angles)))
