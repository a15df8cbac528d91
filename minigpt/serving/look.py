"""minigpt look: the tokens and the attention of a text as one page, to keep and to send, or as a picture."""

import base64
import os
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.commands import LookConfig
from minigpt.faults import StorageFailure
from minigpt.files import replaced, write_file
from minigpt.serving.page_of import AT_REST, page_of
from minigpt.serving.views import look as view_of
from minigpt.serving.views import name_of

MOST_NAMED = 32  # tokens that are written at the edges of the picture


def look(config: LookConfig) -> list[Path]:
    """Write the page, and the picture if it is wanted; return their paths."""
    assert config.checkpoint is not None, "config/rules asks for it"
    loaded = load_checkpoint(config.checkpoint, config.which)
    view = view_of(name_of(loaded.path), loaded, config.text)
    if view["cut"]:
        print(f"The text is longer than a picture: its first {len(view['tokens'])} tokens are shown.")
    page, picture = Path(os.path.expanduser(config.out)), config.png and Path(os.path.expanduser(config.png))
    key, path = "out", page
    try:
        write_file(page, page_of(AT_REST, title=f"{view['name']} reads", data=view)[0])
        if picture:
            key, path = "png", picture
            write_picture(picture, view)
    except OSError as error:
        raise StorageFailure(f"{key}={path} can't be written: {error.strerror or error}. Give another file") from error
    return [page, picture] if picture else [page]


def write_picture(path: Path, view: dict[str, Any]) -> None:
    """Draw the attention of every head, a row for each layer: queries from top to bottom, keys from left to right."""
    import matplotlib  # here, not above: a page needs none of it

    matplotlib.use("agg")
    from matplotlib import pyplot

    layers, heads, T = view["attention"]["layers"], view["attention"]["heads"], len(view["tokens"])
    packed = np.frombuffer(base64.b64decode(view["attention"]["weights"]), "<u2")
    weights = packed.reshape(layers, heads, T, T) / 65535
    names = [token["text"].replace("\n", "\\n").replace("$", r"\$") for token in view["tokens"]]
    figure, grid = pyplot.subplots(
        layers, heads, figsize=(0.6 + 2.4 * heads, 0.8 + 2.4 * layers), squeeze=False, layout="constrained"
    )
    for layer, head in np.ndindex(layers, heads):
        axes: Any = grid[layer, head]
        axes.imshow(np.sqrt(weights[layer, head]), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
        places = range(T) if T <= MOST_NAMED else []
        axes.set_xticks(places, names if layer == layers - 1 and places else [""] * len(places))
        axes.set_yticks(places, names if head == 0 and places else [""] * len(places))
        axes.tick_params(labelsize=5, length=0)
        axes.tick_params(axis="x", rotation=90)
    figure.suptitle("square root of the attention: rows attend to columns", fontsize=9)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    pyplot.close(figure)
