"""The curves of a run, and loss.png."""

import contextlib
import html
import io
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

TRAIN, VALIDATION, RATE, BASELINE = "#2f6fde", "#e2571e", "#7a869a", "#1a9a6c"
INK, LINE, GRID = "#27313f", "#c5ccd6", "#e8ebf0"
STYLES = {TRAIN: "train", VALIDATION: "val", RATE: "rate", BASELINE: "base", INK: "ink", LINE: "line", GRID: "line"}
POINTS = 1000  # of a line at most: more than a picture has columns


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
def drawing(*, size: tuple[float, float], font_size: float, dpi: int = 100) -> Iterator[Any]:
    """Yield a matplotlib figure to draw into and to save.

    Args:
        size: inches.
        font_size: points.
        dpi: pixels per inch, of a PNG.
    """
    import matplotlib  # here, not above: reading curves must not cost a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours: Any = dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK)
    # A run's name is text, dollar signs and all; the letters of an SVG are text, too.
    style: Any = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "minigpt", "font.size": font_size}
    with matplotlib.rc_context({**style, **colours, "axes.edgecolor": LINE}):
        figure = Figure(figsize=size, dpi=dpi, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def svg_of(figure: Any, label: str) -> str:
    """The figure as an SVG element in the page's own colours.

    Args:
        figure: matplotlib's.
        label: what it shows, for those who can't see it.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    for colour, name in STYLES.items():
        text = text.replace(colour, f"var(--{name})")
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def open_axes(axes: Any, record: Record) -> None:
    """Prepare axes over all steps of a run: no frame above and to the right, and faint horizontal lines."""
    axes.set_xlim(0, 1.006 * max((row["step"] for row in record.rows), default=1) or 1)  # room for half a point
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}" if step < 1e5 else short_number(step))


def draw_loss(record: Record, path: Path) -> None:
    """Draw loss.png: training and validation loss above, the learning rate below. Written in one step."""
    with drawing(size=(10, 5.6), font_size=11, dpi=150) as figure:
        loss, rate = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [6, 1]})
        draw_losses(loss, record)
        draw_metric(rate, record, "lr", "learning\nrate")
        rate.set_xlabel("optimizer steps")
        figure.align_ylabels([loss, rate])
        name = record.name if len(record.name) <= 40 else record.name[:39] + "…"
        loss.set_title(name, loc="left", fontsize=13, fontweight="bold", pad=34)
        loss.set_title(size_and_loss(record), loc="right", fontsize=12, pad=34)
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png")


def draw_losses(axes: Any, record: Record) -> None:
    """Draw training and validation loss, and the baseline if one was measured; in bits per byte at the right edge."""
    steps, losses = curve(record, "train/loss")
    if len(steps):
        axes.plot(*thin_out(steps, losses), color=TRAIN, linewidth=0.8, alpha=0.3)
        axes.plot(*thin_out(steps, smooth(losses)), color=TRAIN, linewidth=1.8, label="training")
    steps, losses = curve(record, "val/loss")
    best, bits = best_row(record.rows), None
    if best is not None:
        bits = number(best.get("val/bits_per_byte"))
        text = f"validation, best {best['val/loss']:.3f}" + (f" ({bits:.3f} bits per byte)" if bits is not None else "")
        marker = "o" if len(steps) <= 60 else ""
        axes.plot(*thin_out(steps, losses), color=VALIDATION, marker=marker, markersize=4.5, linewidth=1.4, label=text)
        ring = {"markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.4, "clip_on": False, "zorder": 4}
        axes.plot([best["step"]], [best["val/loss"]], "o", color=VALIDATION, **ring)
    axes.set_ylim(*loss_limits(record))
    nats, base = nats_per_bit(record.rows), number(record.baseline.get("bits_per_byte"))
    if nats is not None:
        right = axes.secondary_yaxis("right", functions=(lambda loss: loss / nats, lambda bits: bits * nats))
        right.set_ylabel("bits per byte")
        right.spines["right"].set_visible(False)
        right.tick_params(length=0, pad=9)  # the ring of a last point stays off the figures
    if nats is not None and base is not None:
        name = f"{record.baseline.get('name', 'baseline')} ({base:.3f})"
        axes.axhline(base * nats, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.4, label=name)
    axes.set_ylabel("loss, nats per token")
    open_axes(axes, record)
    if axes.has_data():
        axes.legend(loc="lower left", bbox_to_anchor=(-0.012, 0.99), ncols=3, frameon=False)
    else:
        axes.text(0.5, 0.5, "no steps logged yet", transform=axes.transAxes, ha="center", color=RATE)


def draw_metric(axes: Any, record: Record, key: str, name: str) -> None:
    """Draw one metric over the steps, from 0 up; the highest hundredth may leave the picture."""
    steps, values = curve(record, key)
    open_axes(axes, record)
    axes.set_ylabel(name, fontsize=9)
    if len(steps):
        axes.fill_between(*thin_out(steps, values, 400), color=RATE, alpha=0.18, linewidth=0)
        axes.plot(*thin_out(steps, values, 400), color=RATE, linewidth=1.4)
        high = float(np.percentile(values, 99))
        axes.set_ylim(0, 1.15 * high or 1)
        axes.set_yticks([0, high], ["0", short_number(high) if high >= 1 else f"{high:.2g}".replace("e-0", "e-")])
