"""The curves of a run, and loss.png."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.report.record import Record, best_row, column, nats_per_bit, number
from minigpt.report.words import short_number
from minigpt.rundir.files import replaced

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps, values

TRAIN, VALIDATION, RATE, BASELINE, INK = "#2f6fde", "#e2571e", "#7a869a", "#1a9a6c", "#27313f"
POINTS = 1500  # of a line at most: more than a picture has columns


def curve(record: Record, key: str) -> Curve:
    """A metric over the steps."""
    steps, values = column(record.rows, key)
    return np.asarray(steps, dtype=float), np.asarray(values, dtype=float)


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over a centred window of a fortieth of the values: it does not lag behind as a running mean does."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    # Only steep and near the beginning: there the window shrinks evenly. At the end it loses its right half.
    reach = np.minimum(len(values) // 80, places)
    stop = np.minimum(places + reach + 1, len(values))
    return (sums[stop] - sums[places - reach]) / (stop - places + reach)


def thin_out(steps: NDArray[np.float64], values: NDArray[np.float64], points: int = POINTS) -> Curve:
    """At most about `points` points: lowest and highest of each stretch, so that no spike is lost."""
    if len(values) <= points:
        return steps, values
    edges = np.linspace(0, len(values), points // 2 + 1).astype(int)
    picked = [0, len(values) - 1]
    for start, stop in itertools.pairwise(edges.tolist()):
        picked += [start + int(values[start:stop].argmin()), start + int(values[start:stop].argmax())]
    kept = np.unique(picked)
    return steps[kept], values[kept]


def loss_limits(record: Record) -> tuple[float, float]:
    """What the loss axis shows: all but the fall of the first twentieth of the run, which would flatten the rest."""
    train = curve(record, "train/loss")[1]
    train, smoothed = (values[len(values) // 20 :] for values in (train, smooth(train)))
    usual = np.percentile(train, [2, 98]) if len(train) else train  # a spike may leave the picture
    base, nats = number(record.baseline.get("bits_per_byte")), nats_per_bit(record.rows)
    baseline = [] if base is None or nats is None else [base * nats]
    values = np.concatenate([smoothed, usual, curve(record, "val/loss")[1], baseline])
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - margin, high + margin


def size_and_loss(record: Record) -> str:
    """The model's size and its final validation loss, as far as they are known."""
    parts = [f"{short_number(record.parameters)} parameters"] if record.parameters else []
    losses = column(record.rows, "val/loss")[1]
    if losses:
        parts.append(f"final validation loss {losses[-1]:.3f}")
    return ", ".join(parts)


@contextlib.contextmanager
def drawing(path: Path, *, size: tuple[float, float], font_size: float, dpi: int = 120, **file: Any) -> Iterator[Any]:
    """Yield a matplotlib figure to draw into; it replaces the PNG at `path` where the block ends.

    Args:
        path: of the PNG.
        size: inches.
        font_size: points.
        dpi: pixels per inch.
        file: more for matplotlib's savefig.
    """
    import matplotlib  # here, not above: reading curves must not cost a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK)
    # A run's name is text, dollar signs and all.
    style: Any = {"axes.edgecolor": "#c5ccd6", "font.size": font_size, "text.parse_math": False, **colours}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, dpi=dpi, facecolor="white")
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
        FigureCanvasAgg(figure)
        yield figure
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", **file)


def open_axes(axes: Any) -> None:
    """Leave out the frame's upper and right edge, and draw faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e8ebf0", linewidth=0.8)
    axes.set_axisbelow(True)


def draw_loss(record: Record, path: Path) -> None:
    """Draw loss.png: training and validation loss above, the learning rate below. Written in one step."""
    with drawing(path, size=(10, 5.6), font_size=11, dpi=150) as figure:
        loss, rate = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [6, 1]})
        draw_losses(loss, record)
        draw_rate(rate, record)
        figure.align_ylabels([loss, rate])
        name = record.name if len(record.name) <= 40 else record.name[:39] + "…"
        loss.set_title(name, loc="left", fontsize=13, fontweight="bold", pad=34)
        loss.set_title(size_and_loss(record), loc="right", fontsize=12, pad=34)


def draw_losses(axes: Any, record: Record) -> None:
    """The upper panel."""
    steps, losses = curve(record, "train/loss")
    if len(steps):
        axes.plot(*thin_out(steps, losses), color=TRAIN, linewidth=0.8, alpha=0.3)
        axes.plot(*thin_out(steps, smooth(losses)), color=TRAIN, linewidth=1.8, label="training")
    draw_validation(axes, record)
    axes.set_ylim(*loss_limits(record))
    draw_bits(axes, record)
    axes.set_ylabel("loss, nats per token")
    open_axes(axes)
    if axes.has_data():
        axes.legend(loc="lower left", bbox_to_anchor=(-0.012, 0.99), ncols=3, fontsize=10.5, frameon=False)
    else:
        axes.text(0.5, 0.5, "no steps logged yet", transform=axes.transAxes, ha="center", color=RATE)


def draw_validation(axes: Any, record: Record) -> None:
    """Validation losses, the best one ringed and told in the legend."""
    steps, losses = curve(record, "val/loss")
    best = best_row(record.rows)
    if best is None:
        return
    text = f"validation, best {best['val/loss']:.3f}"
    bits = number(best.get("val/bits_per_byte"))
    if bits is not None:
        text += f" ({bits:.3f} bits per byte)"
    marker = "o" if len(steps) <= 60 else ""
    axes.plot(*thin_out(steps, losses), color=VALIDATION, marker=marker, markersize=4.5, linewidth=1.4, label=text)
    ring = {"markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.4, "clip_on": False, "zorder": 4}
    axes.plot([best["step"]], [best["val/loss"]], "o", color=VALIDATION, **ring)


def draw_bits(axes: Any, record: Record) -> None:
    """The same losses in bits per byte at the right edge, and the baseline if one was measured."""
    nats = nats_per_bit(record.rows)
    if nats is None:
        return
    right = axes.secondary_yaxis("right", functions=(lambda loss: loss / nats, lambda bits: bits * nats))
    right.set_ylabel("bits per byte")
    right.spines["right"].set_visible(False)
    right.tick_params(length=0, pad=9)  # the ring of a last point stays off the figures
    bits = number(record.baseline.get("bits_per_byte"))
    if bits is not None:
        name = f"{record.baseline.get('name', 'baseline')} ({bits:.3f})"
        axes.axhline(bits * nats, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.4, label=name)


def draw_rate(axes: Any, record: Record) -> None:
    """The lower panel: the learning rate."""
    steps, rates = curve(record, "lr")
    if len(steps):
        axes.fill_between(*thin_out(steps, rates), color=RATE, alpha=0.18, linewidth=0)
        axes.plot(*thin_out(steps, rates), color=RATE, linewidth=1.4)
        peak = float(rates.max())
        axes.set_ylim(0, 1.15 * peak or 1)
        axes.set_yticks([0, peak], ["0", f"{peak:.1e}".replace("e-0", "e-")])
    axes.set_ylabel("learning\nrate", fontsize=9)
    axes.set_xlim(0, 1.006 * max((row["step"] for row in record.rows), default=1) or 1)  # room for half a point
    axes.set_xlabel("optimizer steps")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
