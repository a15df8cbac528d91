"""Figures in one style, as a PNG of their own or as SVG inside a page."""

import contextlib
import html
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minigpt.files import replaced

TRAIN, VALIDATION, RATE, BASELINE = "#2f6fde", "#e2571e", "#7a869a", "#1a9a6c"
INK, LINE, GRID = "#27313f", "#c5ccd6", "#e8ebf0"
STYLES = {TRAIN: "train", VALIDATION: "val", RATE: "rate", BASELINE: "base", INK: "ink", LINE: "line", GRID: "line"}


@contextlib.contextmanager
def drawing(*, size: tuple[float, float], font_size: float, dpi: int = 100) -> Iterator[Any]:
    """Yield a matplotlib figure to draw into and to save.

    Args:
        size: inches.
        font_size: points.
        dpi: pixels per inch, of a PNG.
    """
    import matplotlib  # here, not above: training draws only at its end, and must not wait for it at its beginning
    from matplotlib.figure import Figure

    style: Any = dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK)
    style |= {"axes.edgecolor": LINE, "font.size": font_size}
    # Dollar signs in a run's name are no formula; letters in an SVG stay text.
    style |= {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "minigpt"}
    style["path.simplify_threshold"] = 1.0  # pixels: a long run has no more points than a picture can show
    with matplotlib.rc_context(style):
        yield Figure(figsize=size, dpi=dpi, facecolor="white", layout="constrained")


def write_png(figure: Any, path: Path) -> None:
    """Write a figure as a PNG, in one step."""
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def svg_of(figure: Any, label: str) -> str:
    """Return a figure as an SVG element in the page's own colours.

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
