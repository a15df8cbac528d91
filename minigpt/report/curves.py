"""The curves of a run, as loss.png and as SVG inside a page."""

import contextlib
import html
import io
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.files import replaced
from minigpt.report.record import Numbers, Record, Row, best_row, column, nats_per_bit, number
from minigpt.screen import short_number

TRAIN, VALIDATION, RATE, BASELINE = "#2f6fde", "#e2571e", "#7a869a", "#1a9a6c"
INK, LINE, GRID = "#27313f", "#c5ccd6", "#e8ebf0"
FONTS = ("Noto Sans CJK SC", "Noto Sans Devanagari", "PingFang SC", "Microsoft YaHei")  # for what DejaVu Sans lacks
REWARD = "train/reward"
STYLES = {TRAIN: "train", VALIDATION: "val", RATE: "rate", BASELINE: "base", INK: "ink", LINE: "line", GRID: "line"}


@contextlib.contextmanager
def drawing(*, size: tuple[float, float], font_size: float, dpi: int = 100) -> Iterator[Any]:
    """Yield a matplotlib figure to draw into and to save, of a size in inches with letters of so many points."""
    import matplotlib.font_manager  # here: a training draws only at its end, and must not wait for it
    from matplotlib.figure import Figure

    style: Any = dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK)
    style |= {"axes.edgecolor": LINE, "font.size": font_size}
    # Dollar signs in a run's name are no formula; letters in an SVG stay text.
    style |= {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "minigpt"}
    known = matplotlib.font_manager.get_font_names()
    style["font.family"] = ["DejaVu Sans", *(name for name in FONTS if name in known)]
    style["path.simplify_threshold"] = 1.0  # pixels: a long run has no more points than a picture can show
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font here has the letters of a run's name
        yield Figure(figsize=size, dpi=dpi, facecolor="white", layout="constrained")


def svg(label: str, size: tuple[float, float], draw: Callable[..., None], *facts: Any) -> str:
    """Return what `draw` makes of axes and facts as an SVG element in the page's own colours.

    The label is for those who can't see it.
    """
    file = io.StringIO()
    with drawing(size=size, font_size=9) as figure:
        draw(figure.subplots(), *facts)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    for colour, name in STYLES.items():
        text = text.replace(colour, f"var(--{name})")
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def smooth(values: Numbers) -> Numbers:
    """Return the mean over a centred window of a fortieth of the values. Unlike a running mean it has no lag."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    # Near the beginning, where the curve is steep, the window shrinks evenly. At the end it loses its right half.
    reach = np.minimum(len(values) // 80, places)
    stop = np.minimum(places + reach + 1, len(values))
    return (sums[stop] - sums[places - reach]) / (stop - places + reach)


def draw_loss(record: Record, path: Path) -> None:
    """Draw loss.png: training and validation loss above, or the reward that is learned; the learning rate below."""
    with drawing(size=(10, 5.6), font_size=11, dpi=150) as figure:
        loss, rate = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [6, 1]})
        draw_learned(loss, record)
        draw_metric(rate, record, "lr", "learning\nrate")
        rate.set_xlabel("optimizer steps")
        figure.align_ylabels([loss, rate])
        lines = -(-len(loss.get_legend_handles_labels()[1]) // 2)  # of the legend, below the title
        loss.set_title(record.name, loc="left", fontsize=13, fontweight="bold", pad=12 + 19 * lines)
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})


def draw_learned(axes: Any, record: Record) -> None:
    """Draw what is learned: the losses, or a reward."""
    if len(column(record.rows, REWARD)[0]):
        draw_metric(axes, record, REWARD, "mean reward of a step's answers")
    else:
        draw_losses(axes, record)


def draw_losses(axes: Any, record: Record) -> None:
    """Draw training and validation loss, and the baselines if they were measured.

    The axis does not show the fall in the first twentieth of a run, nor baselines above the lowest: they would flatten
    the rest.
    """
    steps, losses = column(record.rows, "train/loss")
    smoothed, fall = smooth(losses), len(losses) // 20
    visible = [smoothed[fall:]]
    if len(losses):
        axes.plot(steps, losses, color=TRAIN, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smoothed, color=TRAIN, linewidth=1.8, label="training")
        visible.append(np.percentile(losses[fall:], [2, 98]))  # a spike may be outside of the picture
    if (best := best_row(record.rows)) is not None:
        steps, losses = column(record.rows, "val/loss")
        bits = number(best.get("val/bits_per_byte"))
        text = f"validation, best {best['val/loss']:.3f}" + (f" ({bits:.3f} bits per byte)" if bits is not None else "")
        axes.plot(steps, losses, color=VALIDATION, marker="." if len(losses) < 60 else "", linewidth=1.4, label=text)
        visible.append(losses)
    nats = nats_per_bit(record.rows)
    if nats is not None:
        visible += [np.array([row["bits_per_byte"] * nats]) for row in record.baselines[:1]]
    values = np.concatenate(visible)
    if len(values):
        margin = 0.06 * float(np.ptp(values)) or 0.05 * abs(float(values[0])) or 0.5
        axes.set_ylim(values.min() - margin, values.max() + margin)
        for row, line in zip(record.baselines, ("--", "-.", ":"), strict=False) if nats else ():
            base = row["bits_per_byte"] * nats
            if base <= axes.get_ylim()[1]:
                axes.axhline(base, color=BASELINE, linestyle=line, linewidth=1.4, label=row["name"])
        columns = 2 if axes.figure.get_figwidth() > 6 else 1
        axes.legend(loc="lower left", bbox_to_anchor=(-0.012, 0.99), ncols=columns, frameon=False)
    axes.set_ylabel("loss, nats per token")
    _open_axes(axes, record)


def draw_metric(axes: Any, record: Record, key: str, name: str) -> None:
    """Draw one metric over the steps, from 0 up; the highest hundredth may be outside if it is far above the rest."""
    steps, values = column(record.rows, key)
    _open_axes(axes, record)
    axes.set_ylabel(name, fontsize=9)
    axes.yaxis.set_major_formatter(_short)
    axes.plot(steps, values, color=RATE, linewidth=1.4)
    if len(values):
        usual, highest = float(np.percentile(values, 99)), float(values.max())
        high = highest if highest < 1.5 * usual else usual
        axes.set_ylim(0, 1.15 * high or 1)


def draw_layers(axes: Any, record: Record, prefix: str) -> None:
    """Draw a metric of each layer over the validated steps: the later a layer, the stronger its line."""
    names = sorted({key.removeprefix(prefix) for row in record.rows for key in row if key.startswith(prefix)})
    layers = sorted(filter(str.isdigit, names), key=int)
    for place, layer in enumerate(layers):
        label = f"layer {int(layer) + 1}" if layer in (layers[0], layers[-1]) else None
        strength = 0.3 + 0.7 * (place + 1) / len(layers)
        steps, values = column(record.rows, prefix + layer)
        marker = "." if len(values) == 1 else None
        axes.plot(steps, smooth(values), color=TRAIN, marker=marker, alpha=strength, linewidth=1.2, label=label)
    if "embedding" in names:
        axes.plot(*column(record.rows, f"{prefix}embedding"), color=VALIDATION, linewidth=1.4, label="embedding")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.03, 0.98), ncols=3, frameon=False)
    _open_axes(axes, record)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(_short)


def draw_positions(axes: Any, positions: list[Row]) -> None:
    """Draw the loss by the place of a token in its window, with two standard errors to either side."""
    places = [math.sqrt(row["first"] * row["last"]) for row in positions]
    losses, errors = (np.array([row[key] for row in positions]) for key in ("nats", "error"))
    axes.fill_between(places, losses - 2 * errors, losses + 2 * errors, color=TRAIN, alpha=0.18, linewidth=0)
    axes.plot(places, losses, color=TRAIN, marker=".", linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda place, _: f"{place:,.0f}")
    axes.set_xlabel("tokens read before it in the window")
    plain(axes)


def _open_axes(axes: Any, record: Record) -> None:
    """Prepare axes over all steps of a run: no frame above and to the right, and faint horizontal lines."""
    axes.set_xlim(0, 1.006 * max((row["step"] for row in record.rows), default=1) or 1)  # room for half a point
    plain(axes)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}" if step < 1e5 else short_number(step))
    axes.locator_params(axis="x", integer=True, nbins=6)


def _short(value: float, _: int) -> str:
    return f"{value:g}" if value < 1e4 else short_number(value)


def plain(axes: Any) -> None:
    """Give axes the look of the report: no frame above and to the right, and faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
