"""The picture of how cost grows: a small panel per thing that is changed, all else kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.report.curves import INK, TRAIN
from minigpt.rundir.files import replaced

LABELS = 5  # at most, along an axis
IDEAL = "#8a93a2"


@dataclass(frozen=True)
class Panel:
    """Values at labelled places, evenly spaced, with their ends."""

    title: str
    x: str
    y: str
    labels: Sequence[str]
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    ideal: Sequence[float] = ()  # what arithmetic alone lets one expect


def draw_growth(panels: Sequence[Panel], path: Path) -> None:
    """Draw the panels, four in a row. Every value axis begins at 0, so what looks flat is. Written in one step."""
    import matplotlib  # here, not above: it takes a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {"axes.edgecolor": "#c5ccd6", "text.color": INK, "axes.labelcolor": INK, "font.size": 10}
    rows = -(-len(panels) // 4)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(14, 3.4 * rows), dpi=120, facecolor="white")
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, 4, squeeze=False).flatten()
        for axes, panel in zip(grid, panels, strict=False):
            draw_panel(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png")


def draw_panel(axes: Any, panel: Panel) -> None:
    """A line with a band from the lowest to the highest value."""
    places = list(range(len(panel.values)))
    axes.fill_between(places, panel.low, panel.high, color=TRAIN, alpha=0.2, linewidth=0)
    marker = "o" if len(places) <= 2 * LABELS else ""
    axes.plot(places, panel.values, color=TRAIN, marker=marker, markersize=4.5, linewidth=1.6)
    shown = places[:: -(-len(places) // LABELS)] if len(places) > LABELS else places
    axes.set_xticks(shown, [panel.labels[place] for place in shown])
    if panel.ideal:
        axes.plot(places, panel.ideal, color=IDEAL, linestyle=(0, (5, 3)), linewidth=1.2, label="by arithmetic")
        axes.legend(loc="lower left", fontsize=8.5, frameon=False)
    axes.margins(x=0.08)
    axes.tick_params(labelsize=9)
    axes.set_ylim(0, 1.15 * max(*panel.high, *panel.ideal) or 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}")
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e8ebf0", linewidth=0.8)
    axes.set_axisbelow(True)
