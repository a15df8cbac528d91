"""Charts of a sweep as inline SVG: no script, coloured by the page's style sheet, readable with some hundred trials."""

import html
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.report.svg import nice_ticks
from minigpt.sweep.space import Axis, text_of
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, Trial

SHADES = 8  # classes s0 (best) to s7 (worst)
WIDTH = 920
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 34


@dataclass(frozen=True)
class Scale:
    """Values to places between 0 and 1."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[str, ...] = ()

    def place(self, value: Any) -> float:
        """Where a value lies; cut off at the ends."""
        if self.choices:
            return (self.choices.index(text_of(value)) + 0.5) / len(self.choices)
        low, high, value = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5

    def spread(self, value: Any, trial: int) -> float:
        """The place, for choices a little aside, so that many trials with one value can be told apart."""
        aside = zlib.crc32(f"{trial}/{self.choices}".encode()) / 2**32 - 0.5
        return self.place(value) + (0.55 * aside / len(self.choices) if self.choices else 0.0)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """(place, text) of some round values."""
        if self.choices:
            return [((place + 0.5) / len(self.choices), text) for place, text in enumerate(self.choices)]
        if not self.log:
            return [(self.place(value), f"{value:.4g}") for value in nice_ticks(self.low, self.high, count)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [value for value in values if self.low * 0.999 <= value <= self.high * 1.001]
        return [(self.place(value), f"{value:.4g}") for value in inside or [self.low, self.high]]


def scale_of(axis: Axis) -> Scale:
    """The scale that an axis is searched on."""
    if axis.choices:
        return Scale(choices=tuple(text_of(choice) for choice in axis.choices))
    return Scale(axis.low, axis.high, axis.log)


def value_limits(trials: Sequence[Trial]) -> tuple[float, float]:
    """Of the values shown: those of complete trials, but for the worst tenth, which would flatten the rest."""
    values = sorted(trial.value for trial in trials if trial.value is not None and trial.state == COMPLETE)
    values = values or sorted(trial.value for trial in trials if trial.value is not None)
    if not values:
        return 0.0, 1.0
    low = values[0]
    high = max(values[int(0.9 * (len(values) - 1))], values[min(4, len(values) - 1)])
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def shades(trials: Sequence[Trial]) -> dict[int, str]:
    """A class for each trial with a value: by its rank among them, the best first."""
    order = sorted(
        (trial for trial in trials if trial.value is not None), key=lambda trial: (trial.value, trial.number)
    )
    return {trial.number: f"s{place * SHADES // len(order)}" for place, trial in enumerate(order)}


def name_of(trial: Trial) -> str:
    """What pointing at a trial shows."""
    value = "" if trial.value is None else f" {trial.value:.5g}"
    params = ", ".join(f"{key}={text_of(param)}" for key, param in trial.params.items())
    return html.escape(f"trial {trial.number}: {trial.state}{value}, {params}")


def frame(width: int, height: int, label: str) -> str:
    """The opening tag."""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">'


def grid_lines(scale: Scale, width: int, height: int) -> list[str]:
    """Horizontal lines with their values."""
    parts = []
    for place, text in scale.ticks(max(2, height // 60)):
        y = TOP + (height - TOP - BOTTOM) * (1 - place)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{LEFT - 8}" y="{y:.1f}">{html.escape(text)}</text>')
    return parts


def mark(trial: Trial, x: float, y: float, shade: str) -> str:
    """A trial as a point: full, hollow where it was pruned, a cross where it failed."""
    title = f"<title>{name_of(trial)}</title>"
    if trial.state == FAILED:
        return f'<path class="failed" d="M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8">{title}</path>'
    kind = "pruned" if trial.state == PRUNED else "complete"
    return f'<circle class="{kind} {shade}" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>'


def history(trials: Sequence[Trial], height: int = 300) -> str:
    """Each trial's value in the order of trials, and the best so far."""
    finished = [trial for trial in trials if trial.finished]
    low, high = value_limits(finished)
    scale, shade = Scale(low, high), shades(finished)
    last = max((trial.number for trial in finished), default=0) or 1

    def across(number: int) -> float:
        return LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * number / last

    def down(value: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (1 - scale.place(value))

    parts = [frame(WIDTH, height, "value of each trial"), *grid_lines(scale, WIDTH, height)]
    for number in nice_ticks(0, last, 10):
        if number == int(number):
            parts.append(f'<text class="x" x="{across(int(number)):.1f}" y="{height - 8}">{number:.0f}</text>')
    path: list[str] = []
    best = math.inf
    for trial in finished:
        if trial.state == COMPLETE and trial.value is not None and trial.value < best:
            if path:
                path.append(f"{across(trial.number):.1f},{down(best):.1f}")
            best = trial.value
            path.append(f"{across(trial.number):.1f},{down(best):.1f}")
    if path:
        path.append(f"{across(last):.1f},{down(best):.1f}")
        parts.append(f'<polyline class="bestline" points="{" ".join(path)}"/>')
    for trial in finished:
        y = TOP - 2 if trial.value is None else down(trial.value)
        parts.append(mark(trial, across(trial.number), y, shade.get(trial.number, "")))
    return "".join([*parts, "</svg>"])


def parallel(axes: Sequence[Axis], trials: Sequence[Trial], metric: str, height: int = 360) -> str:
    """Each trial as a line through its settings to its value; the best drawn last."""
    shown = [trial for trial in trials if trial.value is not None]
    if len(shown) < 2:
        return ""
    low, high = value_limits(shown)
    scales = [*(scale_of(axis) for axis in axes), Scale(low, high)]
    names = [*(axis.key for axis in axes), metric]
    top, left, right = 40, 90, 90
    width = max(WIDTH, left + right + 150 * (len(scales) - 1))
    across = [left + (width - left - right) * place / (len(scales) - 1) for place in range(len(scales))]

    def down(place: float) -> float:
        return top + (height - top - 20) * (1 - place)

    shade = shades(shown)
    parts = [frame(width, height, "settings and value of each trial")]
    for trial in sorted(shown, key=lambda trial: trial.value or 0.0, reverse=True):
        places = [scale.spread(trial.params[axis.key], trial.number) for scale, axis in zip(scales, axes, strict=False)]
        places.append(scales[-1].place(trial.value))
        points = " ".join(f"{x:.1f},{down(place):.1f}" for x, place in zip(across, places, strict=True))
        parts.append(
            f'<polyline class="thread {trial.state} {shade[trial.number]}" points="{points}">'
            f"<title>{name_of(trial)}</title></polyline>"
        )
    for place, (x, scale, name) in enumerate(zip(across, scales, names, strict=True)):
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 20}"/>')
        above = top - 12 if place % 2 == 0 or len(scales) < 5 else top - 27  # neighbours' names must not overlap
        parts.append(f'<text class="x name" x="{x:.1f}" y="{above}">{html.escape(name)}</text>')
        for tick, text in scale.ticks(5):
            parts.append(f'<text class="tick" x="{x + 5:.1f}" y="{down(tick):.1f}">{html.escape(text)}</text>')
    return "".join([*parts, "</svg>"])


def scatter(axis: Axis, trials: Sequence[Trial], width: int = 440, height: int = 210) -> str:
    """Values over one setting."""
    shown = [trial for trial in trials if trial.value is not None]
    low, high = value_limits(shown)
    down, along, shade = Scale(low, high), scale_of(axis), shades(shown)
    parts = [frame(width, height, f"value over {axis.key}"), *grid_lines(down, width, height)]
    inner = width - LEFT - RIGHT - 20
    for place, text in along.ticks(5):
        parts.append(
            f'<text class="x" x="{LEFT + 10 + inner * place:.1f}" y="{height - 10}">{html.escape(text)}</text>'
        )
    for trial in sorted(shown, key=lambda trial: trial.value or 0.0, reverse=True):
        x = LEFT + 10 + inner * along.spread(trial.params[axis.key], trial.number)
        y = TOP + (height - TOP - BOTTOM) * (1 - down.place(trial.value))
        parts.append(mark(trial, x, y, shade[trial.number]))
    return "".join([*parts, "</svg>"])


def bars(shares: Mapping[str, float]) -> str:
    """Shares of 1 as horizontal bars, the largest first."""
    height = 26 * len(shares) + 8
    parts = [frame(WIDTH, height, "importance of each setting")]
    for row, (name, share) in enumerate(sorted(shares.items(), key=lambda item: -item[1])):
        y = 26 * row + 6
        length = max(1.0, (WIDTH - 330) * share)
        parts.append(f'<text class="y" x="240" y="{y + 10}">{html.escape(name)}</text>')
        parts.append(f'<rect class="bar" x="250" y="{y}" width="{length:.1f}" height="18" rx="3"/>')
        parts.append(f'<text class="tick" x="{258 + length:.1f}" y="{y + 10}">{share:.0%}</text>')
    return "".join([*parts, "</svg>"])
