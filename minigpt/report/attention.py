"""Pictures of attention: what each head of a trained model looks at, and masks. Rows are queries, columns keys."""

import functools
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.font_manager import fontManager, get_font
from torch import Tensor

from minigpt.attention.record import record_attention
from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.report.drawing import drawing, write_png

Labels = Sequence[str]  # of rows or columns

HIDDEN = "#eceff3"  # what can't be attended
FONT = "DejaVu Sans Mono"  # comes with matplotlib
SHOWN = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})
LONGEST_LABEL = 12  # characters


def draw_attention(checkpoint: str | Path, text: str, out: str | Path | None = None, which: str = "best") -> list[Path]:
    """Draw what each head of each layer attends to while the model reads a text.

    Args:
        checkpoint: a run directory or a checkpoint directory.
        text: taken literally; at most its first block_size tokens are read.
        out: folder for the pictures; default the run's folder attention/, or ./attention for a lone checkpoint.
        which: of a run, "best" or "latest".

    Returns:
        One PNG per layer.

    Raises:
        UserFault: no such checkpoint, an empty text or one outside the alphabet, or a folder that can't be written.
    """
    loaded = load_checkpoint(checkpoint, which)
    labels, weights = attention_to(loaded, text)
    run = loaded.path.parents[1] if loaded.path.parent.name == "checkpoints" else Path()
    folder = Path(os.path.expanduser(out or run / "attention"))
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
        print(f"The text has {len(tokens):,} tokens: the first {longest} are drawn, as many as the model can read.")
    device = next(loaded.model.parameters()).device
    with torch.inference_mode(), record_attention(loaded.model) as recorded:
        loaded.model(torch.tensor([tokens[:longest]], device=device))
    weights = {name: each[0].cpu() for name, each in recorded.items()}
    return token_labels(loaded.tokenizer, tokens[:longest]), weights


def token_labels(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return labels for tokens in a picture: white space is visible, long runs are counted, odd bytes hexadecimal.

    A character that consists of several tokens stands at the first of them; the others have a dot.
    """
    labels: list[str] = []
    while len(labels) < len(tokens):
        joined = [b"".join(map(tokenizer.token_bytes, tokens[len(labels) :][:size])) for size in range(1, 5)]
        whole = [data.decode(errors="ignore").encode() == data for data in joined]
        others = whole.index(True) if any(whole) else 0
        labels += [_label(joined[others]), *["·"] * others]
    return labels[: len(tokens)]


def _label(token: bytes) -> str:
    if not token:
        return "<eot>"
    text = token.decode("utf-8", "backslashreplace").translate(SHOWN)
    text = "".join(each if each.isprintable() and _font_with(each) else ascii(each)[1:-1] for each in text)
    text = re.sub(r"([␣↵⇥])\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", text)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


@functools.cache
def _font_with(character: str) -> str | None:
    """Return the name of a font that has the character: ours, else any that is installed."""
    fonts = sorted(fontManager.ttflist, key=lambda font: font.name != FONT)
    real = (font for font in fonts if not font.name.startswith("Last Resort"))  # that font has boxes for all characters
    return next((font.name for font in real if ord(character) in get_font(font.fname).get_charmap()), None)


def draw_heads(
    weights: Tensor, path: Path, *, title: str, rows: Labels, columns: Labels | None = None, names: Labels | None = None
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
    names = [f"head {head}" for head in range(1, len(weights) + 1)] if names is None else names
    panels = dict(zip(names, weights.detach(), strict=True))
    scale = PowerNorm(0.5, vmin=0, vmax=max(float(weights.detach().max()), 1e-6))  # small weights show, too
    _draw(panels, path, title, scale, rows=rows, columns=columns or rows, bar="weight (square-root scale)")


def draw_masks(masks: dict[str, Tensor], path: Path, *, title: str) -> None:
    """Draw masks (T, S) side by side: blue may attend, grey is hidden. Values from 0 to 1 give shades of blue."""
    T, S = (max(mask.shape[axis] for mask in masks.values()) for axis in (0, 1))
    _draw(masks, path, title, Normalize(0, 1.5), rows=[str(t) for t in range(T)], columns=[str(s) for s in range(S)])


def _draw(
    panels: dict[str, Tensor], path: Path, title: str, scale: Normalize, *, rows: Labels, columns: Labels, bar: str = ""
) -> None:
    """Draw named matrices (T, S) side by side and write the picture.

    Args:
        panels: the matrices; exact zeros are hidden.
        path: of the PNG.
        title: above all.
        scale: from a value to a place on the scale of colours.
        rows: labels; a smaller matrix has the first of them.
        columns: likewise.
        bar: label of the scale beside the matrices; "" = none.
    """
    across = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    down = -(-len(panels) // across)
    cell = min(0.19, 12 / max(len(rows), len(columns)))  # of more than 64 tokens in small print
    width, height = (max(cell * len(labels), 1.4) + 0.9 for labels in (columns, rows))
    colours = colormaps["Blues"].with_extremes(bad=HIDDEN)
    with drawing(size=(across * width + 0.6, down * (height + 0.1) + 0.5), font_size=8, dpi=110) as figure:
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        legend = "rows: queries (the token that attends); columns: keys (what it attends to)"
        figure.suptitle(f"{title}\n{legend}", fontsize=10)
        for place, (name, matrix) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(down, across, place)
            values = matrix.float().masked_fill(matrix == 0, torch.nan).numpy()
            image = axes.imshow(values, cmap=colours, norm=scale)
            axes.set_title(name, fontsize=9, pad=6)
            _label_cells(axes, rows[: len(matrix)], columns[: matrix.shape[1]])
        if bar:
            figure.colorbar(image, ax=figure.axes, shrink=0.8, pad=0.02, aspect=30, label=bar)
        write_png(figure, path)


def _label_cells(axes: Any, rows: Labels, columns: Labels) -> None:
    """Draw labels at every row and column, and white lines between the cells."""
    fonts = {_font_with(character) or FONT for character in set("".join([*rows, *columns]))}
    style = {"fontsize": min(8.0, 480 / max(len(rows), len(columns))), "fontfamily": [FONT, *sorted(fonts - {FONT})]}
    axes.set_yticks(range(len(rows)), labels=rows, **style)
    axes.set_xticks(range(len(columns)), labels=columns, rotation=90 if max(map(len, columns)) > 1 else 0, **style)
    axes.set_xticks([s - 0.5 for s in range(1, len(columns))], minor=True)
    axes.set_yticks([t - 0.5 for t in range(1, len(rows))], minor=True)
    axes.tick_params(which="both", length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.grid(which="minor", color="white", linewidth=min(0.8, 20 / len(columns)))
    axes.spines[:].set_visible(False)
