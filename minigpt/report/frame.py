"""The parts of a page: its HTML frame and style sheet, cards and tables."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1f2733; --soft: #66707f; --paper: #fff; --card: #f5f7fa; --line: #e3e7ed;
  --train: #2f6fde; --val: #e2571e; --base: #1a9a6c; --rate: #7a869a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #98a3b3; --paper: #14181f; --card: #1d232c;
  --line: #2d3541; --train: #6ea1ff; --val: #ff8a57; --base: #4fcf9d; --rate: #93a0b5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 20px 64px; max-width: 960px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 0 0 10px; }
h3 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 14px 0 4px; }
header p { color: var(--soft); margin: 4px 0 20px; overflow-wrap: anywhere; }
section { margin-top: 34px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 10px; }
.figures div { background: var(--card); border-radius: 10px; padding: 12px 14px; }
.figures b, .figures span, .figures small { display: block; color: var(--soft); font-size: 13px; }
.figures b { color: var(--ink); font-size: 22px; line-height: 1.3; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; } .for-narrow { display: none; }
@media (max-width: 620px) { .for-narrow { display: block; } .for-wide { display: none; } }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 16px; margin-top: 16px; }
pre { background: var(--card); border-radius: 8px; padding: 10px 14px; margin: 0; overflow-x: auto;
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.sample { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td { border-bottom: 1px solid var(--line); padding: 4px 12px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { color: var(--soft); white-space: nowrap; width: 1%; padding-right: 24px; }
th { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td:nth-child(2):not(:last-child) { white-space: nowrap; }
td:last-child, .columns td { min-width: 104px; } .columns td:nth-child(n+2) { white-space: normal; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--soft); }
"""

# No script can run, whatever a sample or a setting holds.
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} · minigpt</title>
<style>{style}</style>
<header><h1>{name}</h1><p>{summary}</p></header>
<div class="figures">{figures}</div>
{body}
</html>
"""


def page_of(name: str, summary: str, cards: Iterable[Sequence[str]], sections: dict[str, str], style: str = "") -> str:
    """Return a page as HTML.

    Args:
        name: its headline.
        summary: a line below.
        cards: the headline figures: value, what it is, note.
        sections: title -> HTML; an empty one is left out.
        style: more CSS.
    """
    figure = "<div><b>{}</b><span>{}</span><small>{}</small></div>"
    figures = "".join(figure.format(*map(escape, card)) for card in cards)
    body = "".join(f"<section><h2>{title}</h2>{part}</section>" for title, part in sections.items() if part)
    return PAGE.format(name=escape(name), style=STYLE + style, summary=escape(summary), figures=figures, body=body)


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Return rows of cells as a table, under names of the columns if they are given; "" if there are no rows."""
    cells = ("".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) for row in rows)
    lines = "".join(f"<tr>{each}</tr>" for each in cells)
    names = f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>" if head else ""
    kind = ' class="columns"' if head else ""
    return f'<div class="wide"><table{kind}>{names}{lines}</table></div>' if lines else ""


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
