"""scaling.png: how efficient training is on more devices, and how a step's time is spent."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minigpt.report.drawing import GRID, RATE, TRAIN, VALIDATION, drawing, write_png


@dataclass(frozen=True)
class Point:
    """A training step on a number of devices."""

    devices: int
    batch: str  # weak | strong | both
    measured: bool  # if not, it was calculated
    efficiency: float
    silent: float  # ms of the step without communication
    exposed: float  # ms that sending adds


def draw_scaling(points: Sequence[Point], title: str, path: Path) -> None:
    """Draw efficiency over devices on the left, the step of weak scaling on the right; calculated points are pale."""
    with drawing(size=(10, 4.2), font_size=11, dpi=150) as figure:
        left, right = figure.subplots(1, 2)
        for batch, colour in (("weak", TRAIN), ("strong", VALIDATION)):
            line = [point for point in points if point.batch in (batch, "both")]
            known = [point for point in line if point.measured]
            rest = line[len(known) - 1 :]
            for part, style in ((known, {"marker": "o", "label": batch}), (rest, {"linestyle": ":"})):
                places = [point.devices for point in part]
                left.plot(places, [100 * point.efficiency for point in part], color=colour, **style)
        left.set_ylim(0, 108)
        left.set_ylabel("efficiency, % of the fewest devices")
        weak = [point for point in points if point.batch != "strong"]
        names = [f"{point.devices:,}" for point in weak]
        for name, bottom, heights, colour in (
            ("computing", [0.0] * len(weak), [point.silent for point in weak], RATE),
            ("exposed communication", [point.silent for point in weak], [point.exposed for point in weak], VALIDATION),
        ):
            bars = right.bar(names, heights, bottom=bottom, color=colour, label=name)
            for bar, point in zip(bars, weak, strict=True):
                bar.set_alpha(1.0 if point.measured else 0.45)
        right.set_ylabel("ms a step, batch per device fixed")
        for axes in (left, right):
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.99), ncols=2)
            axes.set_xlabel("devices (dotted, pale: on paper)")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color=GRID, linewidth=0.8)
            axes.set_axisbelow(True)
        left.set_xscale("log", base=2)
        left.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
        write_png(figure, path)
