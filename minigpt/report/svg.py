"""Line charts as inline SVG: sharp at any size, coloured by the page's style sheet, no script."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigpt.report.words import short_number

LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 30  # margins in px


@dataclass
class Line:
    """A curve of a chart; `style` is a CSS class."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    style: str
    dots: bool = False  # each point marked, and named when pointed at


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers between low and high, in steps of 1, 2 or 5 times a power of ten."""
    if not low < high:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def line_chart(
    lines: Sequence[Line],
    *,
    limits: tuple[float, float],
    width: int = 920,
    height: int = 320,
    label: str = "",
    show: Callable[[float], str] = "{:g}".format,
) -> str:
    """An SVG element.

    Args:
        lines: drawn in this order.
        limits: lowest and highest value shown; what lies outside is cut off.
        width: px of its own coordinates; on the page it takes what room there is.
        height: px.
        label: what the chart shows, for those who can't see it.
        show: a value as text.
    """
    low, high = limits if limits[0] < limits[1] else (limits[0] - 0.5, limits[0] + 0.5)
    last_step = max((line.steps[-1] for line in lines if len(line.steps)), default=1) or 1

    def across(step: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * step / last_step

    def down(value: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">']
    for value in nice_ticks(low, high, max(2, height // 60)):
        place = f"{down(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{place}" y2="{place}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{place}">{html.escape(show(value))}</text>')
    for step in nice_ticks(0, last_step, max(2, width // 130)):
        words = short_number(step) if last_step >= 1e5 else f"{step:,.0f}"
        parts.append(f'<text class="x" x="{across(step):.1f}" y="{height - 8}">{words}</text>')
    # A nested svg cuts off what leaves it, without an id that two charts of a page would share.
    room = f'x="{LEFT}" y="{TOP - 6}" width="{width - LEFT - RIGHT + 6}" height="{height - TOP - BOTTOM + 12}"'
    parts.append(f'<svg {room} viewBox="{LEFT} {TOP - 6} {width - LEFT - RIGHT + 6} {height - TOP - BOTTOM + 12}">')
    for line in lines:
        points = [(across(step), down(value)) for step, value in zip(line.steps, line.values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="{line.style}" points="{path}"/>')
        if line.dots:
            for (x, y), step, value in zip(points, line.steps, line.values, strict=True):
                name = html.escape(f"{line.label} {show(value)} at step {step:,.0f}")
                parts.append(
                    f'<circle class="{line.style}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{name}</title></circle>'
                )
    parts.append("</svg></svg>")
    return "".join(parts)
