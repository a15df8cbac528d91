"""The page as one HTML file that holds the style and the modules of page/ and needs nothing else."""

import base64
import hashlib
import json
import re
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("page")
SHARED = ("dom", "chances", "tokens", "attention", "look")
SERVER = (*SHARED, "api", "write", "chat", "surprise", "main")  # in the order in which they import each other
AT_REST = (*SHARED, "at_rest")

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
<header><h1>{title}</h1></header>
<main></main>
<noscript>This page needs JavaScript, all of which is inside it.</noscript>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</html>
"""


def page_of(modules: tuple[str, ...], *, title: str, data: Any = None) -> tuple[str, str]:
    """Return a page and its content security policy, which allows this style and this script only.

    Args:
        modules: files of page/, each after those that it imports.
        title: of the page.
        data: the content of the page's element #data, as JSON.
    """
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    script = "\n".join(_without_imports((FOLDER / f"{name}.js").read_text(encoding="utf-8")) for name in modules)
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    inside = json.dumps(data).replace("<", "\\u003c")  # so that no text of a model can end the element
    page = PAGE.format(policy=policy, title=escape(title), style=style, script=script, data=inside)
    return page, policy


def _without_imports(module: str) -> str:
    """Return a module's text without imports and exports, for a script that holds all modules."""
    return re.sub(r"^export ", "", re.sub(r"^import .*;\n", "", module, flags=re.MULTILINE), flags=re.MULTILINE)


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
