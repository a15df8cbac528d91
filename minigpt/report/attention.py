"""Pictures of attention: what each head of a trained model looks at, and masks. Rows are queries, columns keys."""

import functools
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.attention.record import record_attention
from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.rundir.files import replaced

INK, HIDDEN = "#27313f", "#eceff3"  # text and lines; what can't be attended
FONT = "DejaVu Sans Mono"  # comes with matplotlib
SHOWN = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})
LONGEST_LABEL = 12  # characters
READABLE = 64  # tokens; more still draw, in small print


def draw_attention(checkpoint: str | Path, text: str, out: str | Path | None = None, which: str = "best") -> list[Path]:
    """Draw what each head of each layer attends to while the model reads a text.

    Args:
        checkpoint: a run directory or a checkpoint directory.
        text: taken literally; of a longer one the first block_size tokens are read.
        out: folder for the pictures; default the run's folder attention/, or ./attention for a lone checkpoint.
        which: of a run, "best" or "latest".

    Returns:
        One PNG per layer.

    Raises:
        UserFault: no such checkpoint, a text that is empty or outside the alphabet, a folder that can't be written.
    """
    loaded = load_checkpoint(checkpoint, which)
    labels, weights = attention_to(loaded, text)
    if out is None:
        in_a_run = loaded.path.parent.name == "checkpoints"
        out = loaded.path.parent.parent / "attention" if in_a_run else Path("attention")
    folder = Path(os.path.expanduser(out))
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for layer, (name, per_head) in enumerate(weights.items(), start=1):
            path = folder / f"layer-{layer:02}.png"
            draw_heads(per_head, path, title=f"layer {layer} of {len(weights)} ({name})", rows=labels)
            paths.append(path)
    except OSError as error:
        raise UserFault(f"out={folder}: can't write pictures there ({error.strerror}). Give another folder") from error
    return paths


def attention_to(loaded: LoadedCheckpoint, text: str) -> tuple[list[str], dict[str, Tensor]]:
    """Return the weights of every layer while the model reads a text.

    Returns:
        A label per token, and by layer name the weights (H, T, T).

    Raises:
        UserFault: the text is empty, or holds a character that the tokenizer does not know.
    """
    tokens = loaded.tokenizer.encode(text)
    longest = loaded.config.model.block_size
    if not tokens:
        raise UserFault('text: got an empty one; wanted at least one character. Give text="..."')
    if len(tokens) > longest:
        print(f"The text has {len(tokens):,} tokens: the first {longest} are drawn, which this model reads at once.")
    device = next(loaded.model.parameters()).device
    with torch.inference_mode(), record_attention(loaded.model) as recorded:
        loaded.model(torch.tensor([tokens[:longest]], device=device))
    return token_labels(loaded.tokenizer, tokens[:longest]), {
        name: weights[0].cpu() for name, weights in recorded.items()
    }


def token_labels(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return tokens as they can be read in a picture: white space shown, long runs counted, odd bytes in hexadecimal.

    A character that several tokens make up stands at the first of them; the others have a dot.
    """
    labels: list[str] = []
    while len(labels) < len(tokens):
        joined = [b"".join(map(tokenizer.token_bytes, tokens[len(labels) :][:size])) for size in range(1, 5)]
        size = next((size for size, data in enumerate(joined, 1) if _is_text(data)), 1)
        labels += [_label(joined[size - 1]), *["·"] * (size - 1)]
    return labels[: len(tokens)]


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode()) or not data
    except UnicodeDecodeError:
        return False


def _label(token: bytes) -> str:
    if not token:
        return "<eot>"
    text = "".join(_character(character) for character in token.decode("utf-8", "surrogateescape"))
    text = re.sub(r"([␣↵⇥])\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", text)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


def _character(character: str) -> str:
    shown = character.translate(SHOWN)
    if "\udc80" <= shown <= "\udcff":  # a byte that is no UTF-8 on its own, as surrogateescape keeps it
        return f"\\x{ord(shown) - 0xDC00:02x}"
    if shown.isprintable() and _font_with(shown):
        return shown
    return f"\\u{ord(shown):04x}"


@functools.cache
def _font_with(character: str) -> str | None:
    """Return the name of a font that has the character: ours, else any that is installed."""
    from matplotlib.font_manager import fontManager, get_font

    fonts = sorted(fontManager.ttflist, key=lambda font: font.name != FONT)
    real = (font for font in fonts if not font.name.startswith("Last Resort"))  # which has a box for everything
    return next((font.name for font in real if ord(character) in get_font(font.fname).get_charmap()), None)


def draw_heads(
    weights: Tensor,
    path: Path,
    *,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw the weights of some heads side by side, on one scale.

    Args:
        weights: (H, T, S). Exact zeros, which no softmax gives, are what a mask hides: they are drawn grey.
        path: of the PNG.
        title: above all.
        rows: T labels of queries.
        columns: S labels of keys; default `rows`.
        names: H titles; default head 1, head 2, ...
    """
    from matplotlib.colors import PowerNorm

    columns = rows if columns is None else columns
    names = [f"head {head}" for head in range(1, len(weights) + 1)] if names is None else names
    weights = weights.detach().float()
    shown = weights.masked_fill(weights == 0, torch.nan).numpy()
    top = max(float(weights.max()), 1e-6)

    def fill(figure: Any, panels: list[Any]) -> None:
        for panel, values, name in zip(panels, shown, names, strict=True):
            image = panel.imshow(values, cmap=_colours(), norm=PowerNorm(0.5, vmin=0, vmax=top))  # small ones show too
            _label_cells(panel, rows, columns)
            panel.set_title(name, fontsize=9, pad=6)
        bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.set_label("weight (colours show its square root)", fontsize=8)

    _draw(path, title, fill, panels=len(weights), rows=len(rows), columns=len(columns))


def draw_masks(masks: dict[str, Tensor], path: Path, *, title: str) -> None:
    """Draw masks (T, S) side by side: blue may attend, grey is hidden. Not only booleans: 0 to 1 shades the blue."""

    def fill(figure: Any, panels: list[Any]) -> None:
        for panel, (name, mask) in zip(panels, masks.items(), strict=True):
            panel.imshow(mask.float().masked_fill(mask == 0, torch.nan).numpy(), cmap=_colours(), vmin=0, vmax=1.5)
            T, S = mask.shape
            _label_cells(panel, [str(t) for t in range(T)], [str(s) for s in range(S)])
            panel.set_title(name, fontsize=9, pad=6)

    most = [max(mask.shape[axis] for mask in masks.values()) for axis in (0, 1)]
    _draw(path, title, fill, panels=len(masks), rows=most[0], columns=most[1])


def _colours() -> Any:
    from matplotlib import colormaps

    return colormaps["Blues"].with_extremes(bad=HIDDEN)


def _label_cells(panel: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Labels at every row and column, and white lines between the cells."""
    size = min(8.0, 480 / max(len(rows), len(columns)))
    turned = 90 if max(map(len, columns)) > 1 else 0
    fonts = {_font_with(character) or FONT for character in set("".join([*rows, *columns]))}
    style = {"fontsize": size, "fontfamily": [FONT, *sorted(fonts - {FONT})], "parse_math": False}
    panel.set_yticks(range(len(rows)), labels=rows, **style)
    panel.set_xticks(range(len(columns)), labels=columns, rotation=turned, **style)
    panel.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    panel.set_xticks([s - 0.5 for s in range(1, len(columns))], minor=True)
    panel.set_yticks([t - 0.5 for t in range(1, len(rows))], minor=True)
    panel.grid(which="minor", color="white", linewidth=min(0.8, 20 / len(columns)))
    panel.tick_params(which="minor", length=0)
    panel.spines[:].set_visible(False)


def _draw(path: Path, title: str, fill: Any, *, panels: int, rows: int, columns: int) -> None:
    """Make a figure with so many panels of so many cells, let `fill` draw into them, write it in one step."""
    import matplotlib  # here, not above: reading a text must not cost a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = panels if panels <= 3 else math.ceil(math.sqrt(panels))
    down = -(-panels // across)
    cell = 0.19 if max(rows, columns) <= READABLE else 12 / max(rows, columns)
    width, height = (max(cell * cells, 1.4) + 0.9 for cells in (columns, rows))
    colours: Any = dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), INK)
    with matplotlib.rc_context(colours):
        figure = Figure(figsize=(across * width + 0.6, down * (height + 0.1) + 0.5), dpi=110, facecolor="white")
        figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"{title}\nrows: queries (the token that attends); columns: keys (what it attends to)",
            fontsize=10,
            parse_math=False,
        )
        grid = list(figure.subplots(down, across, squeeze=False).flat)
        for unused in grid[panels:]:
            unused.set_axis_off()
        fill(figure, grid[:panels])
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})
