"""Medians, spreads, ratios and Markdown tables."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The spread of one contender's measurements, or of the ratios of all rounds."""

    median: float
    low: float
    high: float
    iqr: float  # distance of the quartiles

    def text(self, digits: int = 2) -> str:
        """2.31 (2.28 to 2.40)."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"

    def cells(self, digits: int = 0) -> list[str]:
        """Median, lowest and highest as cells of a table."""
        return [f"{value:,.{digits}f}" for value in (self.median, self.low, self.high)]


def spread(values: Sequence[float]) -> Spread:
    """Median, ends and interquartile range (0 of a single value)."""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (0.0, 0.0, 0.0)
    return Spread(statistics.median(values), min(values), max(values), third - first)


def ratios(others: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as long the others took, round by round: the measurements of one round saw the same machine."""
    return spread([other / own for other, own in zip(others, ours, strict=True)])


def counted(number: int, thing: str) -> str:
    """1 round, 3 rounds."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def short(value: float) -> str:
    """A speed with no more digits than it is good for: 1,234 and 56.7."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are as wide as their cells; all but the first are right-aligned."""
    widths = [max(3, *(len(row[column]) for row in [heads, *rows])) for column in range(len(heads))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in [heads, rule, *rows]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
