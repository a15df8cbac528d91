"""report.html and loss.png: a run on one page that needs nothing else."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from minigpt.config.convert import values
from minigpt.config.schema import TrainConfig
from minigpt.faults import StorageFailure
from minigpt.files import write_file
from minigpt.report.curves import draw_loss, draw_losses, draw_metric, drawing, svg_of
from minigpt.report.record import (
    Record,
    best_row,
    column,
    number,
    overfitting,
    read_record,
    source_losses,
    text_of,
    training_seconds,
)
from minigpt.screen import duration, short_number

SAMPLES_SHOWN = 8  # the others fold away
SMALL_CHARTS = {
    "train/reward": "reward",
    "lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "tokens_per_second": "tokens/s",
}
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


def write_report(run_dir: str | Path) -> None:
    """Draw loss.png and write report.html into a run directory; each replaces the old file in one step."""
    record = read_record(run_dir)
    try:
        draw_loss(record, record.path / "loss.png")
        write_file(record.path / "report.html", page(record))
    except OSError as error:
        wrong = f"run.dir={record.path}: the report can't be written there: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Make room, or mend the folder's permissions") from error


def page(record: Record) -> str:
    """Return the run as one HTML page."""
    sentence = overfitting(record.rows)
    sections = {
        "Overfitting": f"<p>{escape(sentence)}.</p>" if sentence else "",
        "Loss": charts(record),
        "What it writes": samples_section(record),
        "What happened": events_section(record),
        "Settings": settings_section(record.config),
        "Chosen for this machine": table(record.choices.items()),
        "Environment": table(record.environment.items()),
    }
    figure = "<div><b>{}</b><span>{}</span><small>{}</small></div>"
    return PAGE.format(
        name=escape(record.name),
        style=Path(__file__).with_name("page.css").read_text(),
        summary=escape(summary(record)),
        figures="".join(figure.format(*map(escape, card)) for card in cards(record)),
        body="".join(f"<section><h2>{title}</h2>{part}</section>" for title, part in sections.items() if part),
    )


def summary(record: Record) -> str:
    """Return model and data in a line."""
    config = record.config
    parts = [f"GPT with {record.parameters:,} parameters" if record.parameters else "GPT"]
    words = {"n_layer": "{} layers", "n_head": "{} heads", "n_embd": "width {}", "block_size": "context {}"}
    parts += [text.format(config[f"model.{key}"]) for key, text in words.items() if f"model.{key}" in config]
    parts.append(f"text {text_of(config)}, tokenizer {config.get('tokenizer.name', '?')}")
    return " · ".join(parts)


def cards(record: Record) -> Iterator[tuple[str, str, str]]:
    """Yield the headline figures: value, what it is, note."""
    rows, best = record.rows, best_row(record.rows)
    if best:
        final = column(rows, "val/loss")[1][-1]
        note = f"best, step {best['step']:,}; final {final:.4f}"
        yield f"{best['val/loss']:.4f}", "validation loss, nats per token", note
        bits = number(best.get("val/bits_per_byte"))
        if bits is not None:
            note = "; ".join(f"{row['name']}: {row['bits_per_byte']:.3f}" for row in record.baselines)
            yield f"{bits:.3f}", "bits per byte", note
        for name, loss in source_losses(best).items():
            yield f"{loss:.4f}", f"validation loss on {name}", "nats per token"
    if rows:
        yield short_number(rows[-1].get("tokens", 0)), "tokens read", f"{rows[-1]['step']:,} steps"
    if seconds := training_seconds(rows):
        yield duration(seconds), "of training", ""
    speeds, uses = column(rows, "tokens_per_second")[1], column(rows, "mfu")[1]
    if len(speeds):
        note = f"MFU {statistics.median(uses):.1%}" if len(uses) else ""
        yield short_number(statistics.median(speeds)), "tokens per second", note


def charts(record: Record) -> str:
    """Return the losses, then learning rate, gradient norm and speed side by side."""
    if not record.rows:
        return "<p>No step has been logged yet.</p>"
    large, small = [], []
    for name, size in (("broad", (8.6, 3.4)), ("narrow", (4.2, 3.4))):  # the page shows the one that fits its width
        with drawing(size=size, font_size=9) as figure:
            draw_losses(figure.subplots(), record)
            large.append(f'<div class="{name}">{svg_of(figure, "loss over optimizer steps")}</div>')
    for key, name in SMALL_CHARTS.items():
        if len(column(record.rows, key)[0]) > 1:
            with drawing(size=(3.6, 1.6), font_size=9) as figure:
                draw_metric(figure.subplots(), record, key, name)
                small.append(svg_of(figure, name))
    return f'{"".join(large)}<div class="small">{"".join(small)}</div>'


def samples_section(record: Record) -> str:
    """Return the last samples, and the earlier ones folded away."""
    frame = '<h3>step {}</h3><pre class="sample">{}</pre>'
    samples = [frame.format(escape(str(sample["step"])), escape(sample["text"].rstrip())) for sample in record.samples]
    earlier = samples[:-SAMPLES_SHOWN]
    return "".join(samples[-SAMPLES_SHOWN:]) + folded(f"{len(earlier)} earlier", "".join(earlier))


def events_section(record: Record) -> str:
    """Return starts, restarts, stops and warnings."""
    rows = []
    for event in record.events:
        facts = {key: value for key, value in event.items() if key not in ("time", "event")}
        words = ", ".join(f"{key.replace('_', ' ')} {cell_text(value)}" for key, value in facts.items())
        rows.append((str(event.get("time", "")).replace("T", " ")[:19], event.get("event", ""), words))
    return table(rows)


def settings_section(config: dict[str, Any]) -> str:
    """Return the settings that differ from their defaults; the others are folded away."""
    defaults = values(TrainConfig())
    changed = [(key, value) for key, value in config.items() if value != defaults.get(key)]
    others = [(key, value) for key, value in config.items() if value == defaults.get(key)]
    return table(changed) + folded(f"{len(others)} that have their default", table(others))


def folded(title: str, part: str) -> str:
    """Return a part of the page that a click on its title opens; "" if the part is empty."""
    return f"<details><summary>{title}</summary>{part}</details>" if part else ""


def table(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows of cells as a table; "" if there are no rows."""
    cells = ("".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) for row in rows)
    lines = "".join(f"<tr>{line}</tr>" for line in cells)
    return f'<div class="wide"><table>{lines}</table></div>' if lines else ""


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
