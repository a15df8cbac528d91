"""The pages as HTML files that hold the style and the modules of page/ and need nothing else; minigpt look."""

import base64
import hashlib
import json
import os
import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.commands import LookConfig
from minigpt.files import replaced, write_file, writing
from minigpt.serving import views

MOST_NAMED = 32  # tokens that are written at the edges of the picture
FOLDER = Path(__file__).with_name("page")
# Modules of page/, in the order in which they import each other.
SHARED = ("dom", "chances", "tokens", "attention", "lens", "look")
SERVER = (*SHARED, "api", "write", "markdown", "chat", "surprise", "main")
AT_REST = (*SHARED, "at_rest")


def page_of(modules: tuple[str, ...], *, title: str, data: Any = None) -> tuple[str, str]:
    """Return a page and its content security policy, which allows this style and this script only.

    `modules` are files of page/, each after those that it imports; `data` becomes the page's element #data, as JSON.
    """
    frame, style = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.html", "style.css"))
    script = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in modules)
    script = re.sub(r"^import .*;\n|^export ", "", script, flags=re.MULTILINE)  # one script holds all modules
    allowed = f"script-src {_source(script)}; style-src {_source(style)}; img-src data:; connect-src 'self'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    inside = json.dumps(data).replace("<", "\\u003c")  # so that no text of a model can end the element
    return frame.format(policy=policy, title=escape(title), style=style, script=script, data=inside), policy


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def look(config: LookConfig) -> None:
    """Write the page, and the picture if it is wanted; print their paths."""
    loaded = load_checkpoint(str(config.checkpoint), config.which)
    view = views.look(loaded.run.name, loaded, config.text)
    view |= {"kinds": views.kinds(loaded, config.text), "lens": views.lens(loaded, config.text)}
    if view["cut"]:
        print(f"The text is longer than a picture: its first {len(view['tokens'])} tokens are shown.")
    page, picture = Path(os.path.expanduser(config.out)), config.png and Path(os.path.expanduser(config.png))
    with writing(f"out={page}" + f" or png={picture}" * bool(picture)):
        write_file(page, page_of(AT_REST, title=f"{view['name']} reads", data=view)[0])
        if picture:
            write_picture(picture, view)
    print("Wrote", page, *([picture] if picture else []))


def write_picture(path: Path, view: dict[str, Any]) -> None:
    """Draw the attention of every head, a row for each layer: queries from top to bottom, keys from left to right."""
    from matplotlib.figure import Figure  # here, not above: a page needs none of it

    layers, heads, T = view["attention"]["layers"], view["attention"]["heads"], len(view["tokens"])
    packed = np.frombuffer(base64.b64decode(view["attention"]["weights"]), "<u2")
    weights = packed.reshape(layers, heads, T, T) / 65535
    names = [token["text"].replace("\n", "\\n").replace("$", r"\$") for token in view["tokens"]]
    figure = Figure(figsize=(0.6 + 2.4 * heads, 0.8 + 2.4 * layers), layout="constrained")
    grid = figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
    for layer, head in np.ndindex(layers, heads):
        axes: Any = grid[layer, head]
        axes.imshow(np.sqrt(weights[layer, head]), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        kind = view["kinds"][layer][head]["kind"]
        axes.set_title(f"layer {layer + 1}, head {head + 1}{kind and f': {kind}'}", fontsize=8)
        if T <= MOST_NAMED:
            axes.set_xticks(range(T), names, fontsize=5, rotation=90)
            axes.set_yticks(range(T), names, fontsize=5)
    figure.suptitle("square root of the attention: rows attend to columns", fontsize=9)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
