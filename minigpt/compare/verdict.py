"""What a comparison says, in plain words."""

import math

from minigpt.compare.interval import Difference

LEVEL = 0.95


def verdict(a: str, b: str, found: Difference, *, unit: str, level: float = LEVEL) -> str:
    """Which side is better and by how much, or what it would take to tell."""
    half = found.half_width(level)
    if abs(found.value) > half:
        return f"{b if found.value < 0 else a} is better by {plus_minus(abs(found.value), half)} {unit}"
    return f"cannot tell: {b} - {a} = {plus_minus(found.value, half)} {unit}; {_what_would(found, level)}"


def _what_would(found: Difference, level: float) -> str:
    if found.value == 0:
        return "they are equal"
    if found.seed_variance is None:
        times = found.text_missing(level)
        if times > 100:
            return "they are all but equal"
        return f"a validation text about {max(times, 1.1):.2g} times as long would"
    missing = found.seeds_missing(level)
    if missing is None:
        return "more seeds alone would not; the difference is too small for this validation text"
    return f"about {missing} more {'seed' if missing == 1 else 'seeds'} a side would"


def scope(found: Difference, a: str, b: str) -> str:
    """What the verdict is about."""
    if found.seed_variance is None:
        return (
            "One seed a side: this judges these two checkpoints, not the settings. Another seed of the same settings "
            "may differ by more; train each with other seeds (seed=1, seed=2, ...) to judge those."
        )
    spread = f"Runs of one side differ by {math.sqrt(found.seed_variance):.4f} (standard deviation over seeds)."
    if 1 in found.seeds:
        one, other = (a, b) if found.seeds[0] == 1 else (b, a)
        spread += f" {one} has one seed: it is taken to scatter as {other} does."
    return f"{spread} This judges the settings, on text of this kind."


def plus_minus(value: float, half: float) -> str:
    """Like 0.0123 +- 0.0042: two digits of the uncertainty that count, at least three places."""
    places = 3 if half == 0 else min(9, max(3, 1 - math.floor(math.log10(half))))
    return f"{value:.{places}f} +- {half:.{places}f}"
