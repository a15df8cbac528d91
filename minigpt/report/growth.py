"""The picture of how cost grows: a small panel per thing that is changed, all else kept."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.report.curves import TRAIN, drawing, open_axes

LABELS = 5  # at most, along an axis
IDEAL = "#8a93a2"


@dataclass(frozen=True)
class Panel:
    """Values measured at labelled places, evenly spaced."""

    title: str
    x: str
    y: str
    values: Mapping[str, Sequence[float]]  # label -> what was measured there
    ideal: Sequence[float] = ()  # what arithmetic alone lets one expect


def draw_growth(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels, four in a row."""
    rows = -(-len(panels) // 4)
    with drawing(path, size=(14, 3.4 * rows), font_size=10) as figure:
        grid = figure.subplots(rows, 4, squeeze=False).flatten()
        for axes, panel in zip(grid, panels, strict=False):
            draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)


def draw_panel(axes: Any, panel: Panel) -> None:
    """Draw a line of medians with a band from the lowest to the highest value, on an axis that begins at 0."""
    labels, found = list(panel.values), list(panel.values.values())
    places = range(len(labels))
    axes.fill_between(places, [min(each) for each in found], [max(each) for each in found], color=TRAIN, alpha=0.2)
    marker = "o" if len(labels) <= 2 * LABELS else ""
    axes.plot(places, [statistics.median(each) for each in found], color=TRAIN, marker=marker, markersize=4.5)
    shown = places[:: -(-len(labels) // LABELS)]
    axes.set_xticks(shown, [labels[place] for place in shown])
    if panel.ideal:
        axes.plot(places, panel.ideal, color=IDEAL, linestyle=(0, (5, 3)), linewidth=1.2, label="by arithmetic")
        axes.legend(loc="lower left", fontsize=8.5, frameon=False)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.set_ylim(0, 1.15 * max(*map(max, found), *panel.ideal) or 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}")
    open_axes(axes)
