"""Medians, spreads, ratios and tables: arithmetic and text, nothing else."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Of one entrant's turns, or of the ratios of all rounds."""

    median: float
    low: float
    high: float
    iqr: float  # distance of the quartiles

    def text(self, digits: int = 2) -> str:
        """2.31 (2.28 to 2.40)."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Median, ends and interquartile range (0 of a single value)."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0], 0.0)
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), min(values), max(values), third - first)


def ratios(others: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as long the others took, round by round: turns of one round saw the same machine."""
    return spread([other / own for other, own in zip(others, ours, strict=True)])


def counted(number: int, thing: str) -> str:
    """1 round, 3 rounds."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def short(value: float) -> str:
    """A speed with no more digits than it is good for: 1,234 and 56.7."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def training_table(turns: Mapping[str, Sequence[Mapping[str, float | None]]], batch_tokens: int, ours: str) -> str:
    """A row per entrant.

    Args:
        turns: entrant -> its turns, with ms (per step) and first_step (seconds from the command to the first step).
        batch_tokens: tokens per step.
        ours: the entrant that the others are compared with.
    """
    own = [float(turn["ms"] or 0) for turn in turns[ours]]
    rows = []
    for name, found in turns.items():
        times = [float(turn["ms"] or 0) for turn in found]
        first = [seconds for turn in found if (seconds := turn.get("first_step")) is not None]
        each = spread(times)
        rows.append(
            [
                name,
                f"{each.median:,.2f}",
                f"{each.low:,.2f}",
                f"{each.high:,.2f}",
                f"{each.iqr:,.2f}",
                f"{1e3 * batch_tokens / each.median:,.0f}",
                f"{statistics.median(first):.1f}" if first else "",
                "1" if name == ours else ratios(times, own).text(),
            ]
        )
    heads = ["entrant", "ms/step", "min", "max", "IQR", "tokens/s", "first step, s", f"x {ours}"]
    return markdown(heads, rows)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns as wide as they must be; all but the first are right-aligned."""
    widths = [max(len(head), *(len(row[column]) for row in rows), 3) for column, head in enumerate(heads)]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = [("-" * (width - 1) + ":") if column else "-" * width for column, width in enumerate(widths)]
    return "\n".join([line(heads), line(rule), *map(line, rows)])
