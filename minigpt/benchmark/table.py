"""Numbers as text: medians with their ends, and Markdown tables."""

import statistics
from collections.abc import Sequence


def number(value: float) -> str:
    """Return a number with four significant digits, or as a whole number: 0.005714, 1.631, 56.7, 1,234."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def spread(values: Sequence[float]) -> str:
    """Return the median and the range, like 2.31 (2.28 to 2.4)."""
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are as wide as their cells."""
    widths = [max(3, *map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * width for width in widths], *rows]
    cells = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
