"""The pictures of attention in docs/ATTENTION.md: rows are queries, columns keys. `minigpt look` draws a model's."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from torch import Tensor

from minigpt.report.curves import drawing

HIDDEN = "#eceff3"  # what can't be attended
FONT = "DejaVu Sans Mono"  # comes with matplotlib


def draw_heads(
    weights: Tensor,
    path: Path,
    *,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw the weights (H, T, S) of some heads side by side, on one scale; exact zeros, which a mask hides, are grey.

    Args:
        weights: of the heads.
        path: of the PNG.
        title: above all.
        rows: T labels of queries.
        columns: S labels of keys; default `rows`.
        names: H titles; default head 1, head 2, ...
    """
    names = [f"head {head}" for head in range(1, len(weights) + 1)] if names is None else names
    panels = dict(zip(names, weights.detach(), strict=True))
    scale = PowerNorm(0.5, vmin=0, vmax=max(float(weights.detach().max()), 1e-6))  # small weights show, too
    _draw(panels, path, title, scale, rows, columns or rows, bar="weight (square-root scale)")


def draw_masks(masks: dict[str, Tensor], path: Path, *, title: str) -> None:
    """Draw masks (T, S) side by side: blue may attend, grey is hidden. Values from 0 to 1 give shades of blue."""
    T, S = (max(mask.shape[axis] for mask in masks.values()) for axis in (0, 1))
    _draw(masks, path, title, Normalize(0, 1.5), [str(t) for t in range(T)], [str(s) for s in range(S)])


def _draw(
    panels: dict[str, Tensor],
    path: Path,
    title: str,
    scale: Normalize,
    rows: Sequence[str],
    columns: Sequence[str],
    bar: str = "",
) -> None:
    """Draw named matrices side by side; a smaller one has the first of the labels, and `bar` labels the scale."""
    across = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    down = -(-len(panels) // across)
    cell = min(0.19, 12 / max(len(rows), len(columns)))  # of more than 64 tokens in small print
    width, height = (max(cell * len(labels), 1.4) + 0.9 for labels in (columns, rows))
    colours = colormaps["Blues"].with_extremes(bad=HIDDEN)
    style = {"fontsize": min(8.0, 480 / max(len(rows), len(columns))), "fontfamily": FONT}
    with drawing(size=(across * width + 0.6, down * (height + 0.1) + 0.5), font_size=8, dpi=110) as figure:
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        legend = "rows: queries (the token that attends); columns: keys (what it attends to)"
        figure.suptitle(f"{title}\n{legend}", fontsize=10)
        for place, (name, matrix) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(down, across, place)
            values = matrix.float().masked_fill(matrix == 0, torch.nan).numpy()
            image = axes.imshow(values, cmap=colours, norm=scale)
            axes.set_title(name, fontsize=9, pad=6)
            T, S = matrix.shape
            axes.set_yticks(range(T), labels=rows[:T], **style)
            axes.set_xticks(range(S), labels=columns[:S], rotation=90 if max(map(len, columns[:S])) > 1 else 0, **style)
            axes.set_xticks([s - 0.5 for s in range(1, S)], minor=True)
            axes.set_yticks([t - 0.5 for t in range(1, T)], minor=True)
            axes.tick_params(which="both", length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
            axes.grid(which="minor", color="white", linewidth=min(0.8, 20 / S))
            axes.spines[:].set_visible(False)
        if bar:
            figure.colorbar(image, ax=figure.axes, shrink=0.8, pad=0.02, aspect=30, label=bar)
        figure.savefig(path, metadata={"Software": None})
