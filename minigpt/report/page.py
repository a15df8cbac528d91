"""report.html and loss.png: a run on one page that needs nothing else."""

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.config.convert import values
from minigpt.config.schema import TrainConfig
from minigpt.files import write_file, writing
from minigpt.report.curves import draw_layers, draw_learned, draw_loss, draw_metric, draw_positions, svg
from minigpt.report.record import Record, advice, best_row, column, number, read_record, source_losses, text_of, verdict
from minigpt.screen import duration, short_number

SAMPLES_SHOWN = 4  # side by side; the others fold away
SMALL_CHARTS = {"lr": "learning rate", "train/grad_norm": "gradient norm", "tokens_per_second": "tokens/s"}
LAYER_CHARTS = {"train/grad_norm/": "Norm of the gradient", "train/update/": "Size of a step's update, |ΔW| / |W|"}


def write_report(run_dir: str | Path) -> None:
    """Draw loss.png and write report.html into a run directory; each replaces the old file in one step."""
    record = read_record(run_dir)
    with writing(f"the report of run.dir={record.path}", "Make room, or mend the folder's permissions"):
        draw_loss(record, record.path / "loss.png")
        write_file(record.path / "report.html", page(record))


def page(record: Record) -> str:
    """Return the run as one HTML page, in which no script can run, whatever a sample or a setting holds."""
    sections = {
        "What it learned": charts(record),
        "What it writes": samples_section(record),
        "Loss of each token": tokens_section(record),
        "Layer by layer": layers_section(record),
        "Settings": settings_section(record),
        "The rest": events_section(record)
        + folded("Chosen for this machine", table(record.choices.items(), "pairs"))
        + folded("Environment", table(record.environment.items(), "pairs")),
    }
    figure = "<div><b>{}</b><span>{}</span><small>{}</small></div>"
    frame, style = (Path(__file__).with_suffix(end).read_text(encoding="utf-8") for end in (".html", ".css"))
    return frame.format(
        name=escape(record.name),
        style=style,
        verdict=escape(verdict(record)),
        remedy=escape(advice(record)),
        summary=escape(summary(record)),
        figures="".join(figure.format(*map(escape, card)) for card in cards(record)),
        body="".join(f"<section><h2>{title}</h2>{part}</section>" for title, part in sections.items() if part),
    )


def summary(record: Record) -> str:
    """Return model and data in a line."""
    config = record.config
    parts = [f"GPT with {record.parameters:,} parameters" if record.parameters else "GPT"]
    counts = {noun: config.get(f"model.n_{noun}") for noun in ("layer", "head")}
    parts += [f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items() if count is not None]
    words = {"n_embd": "width", "block_size": "context"}
    parts += [f"{word} {config[f'model.{key}']}" for key, word in words.items() if f"model.{key}" in config]
    parts.append(f"text {text_of(config)}, tokenizer {config.get('tokenizer.name', '?')}")
    return " · ".join(parts)


def cards(record: Record) -> Iterator[tuple[str, str, str]]:
    """Yield the headline figures: value, what it is, note."""
    rows, best = record.rows, best_row(record.rows)
    if best:
        final = column(rows, "val/loss")[1][-1]
        note = f"best, step {best['step']:,}" + (f"; final {final:.4f}" if final != best["val/loss"] else ", the last")
        yield f"{best['val/loss']:.4f}", "validation loss, nats per token", note
        if (bits := number(best.get("val/bits_per_byte"))) is not None:
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
        note = f"MFU {statistics.median(uses):.1%}" if len(uses) and statistics.median(uses) >= 0.001 else ""
        yield short_number(statistics.median(speeds)), "tokens per second", note


def training_seconds(rows: list[dict[str, Any]]) -> float:
    """Return the total training time. The rows' clock may begin again at 0 when a run is continued."""
    clock = np.array([row["seconds"] for row in rows if number(row.get("seconds")) is not None], dtype=float)
    passed = np.diff(clock, prepend=0.0)
    return float(np.where(passed >= 0, passed, clock).sum())


def charts(record: Record) -> str:
    """Return the losses, then learning rate, gradient norm and speed side by side."""
    if not record.rows:
        return "<p>No step has been logged yet.</p>"
    label, sizes = "what is learned over optimizer steps", {"broad": (8.6, 3.4), "narrow": (4.2, 3.4)}
    large = [f'<div class="{name}">{svg(label, size, draw_learned, record)}</div>' for name, size in sizes.items()]
    shown = {key: name for key, name in SMALL_CHARTS.items() if len(column(record.rows, key)[0]) > 1}
    small = [svg(name, (3.6, 1.6), draw_metric, record, key, name) for key, name in shown.items()]
    return f'{"".join(large)}<div class="small">{"".join(small)}</div>'


def samples_section(record: Record) -> str:
    """Return what the prompt became as training went on: some samples side by side, and all of them folded away."""
    losses = dict(zip(*map(np.ndarray.tolist, column(record.rows, "val/loss")), strict=True))
    samples = []
    for sample in record.samples:
        loss = f" · validation {losses[sample['step']]:.2f}" if sample["step"] in losses else ""
        text = f'<pre class="sample">{escape(sample["text"].rstrip())}</pre>'
        samples.append(f"<div><h3>step {sample['step']:,}{loss}</h3>{text}</div>")
    if not samples:
        return ""
    prompt = record.config.get("samples.prompt")
    shown = sorted(set(np.linspace(0, len(samples) - 1, SAMPLES_SHOWN).round().astype(int).tolist()))
    others = [sample for place, sample in enumerate(samples) if place not in shown]
    columns = "".join(samples[place] for place in shown)
    began = f'<p class="soft">Each goes on from <code>{escape(prompt.strip())}</code></p>' if prompt else ""
    beside = f'{began}<div class="beside" tabindex="0">{columns}</div>'
    return beside + folded(f"{len(others)} between them", "".join(others))


def tokens_section(record: Record) -> str:
    """Return some validation text, each token coloured by its loss, and the loss by the place in the window."""
    tokens, positions = record.tokens.get("tokens", []), record.tokens.get("positions", [])
    if not tokens or not positions:
        return ""
    frame = '<i style="--nats:{0:.1f}" title="{0:.2f} nats">{1}</i>'
    text = "".join(
        escape(token["text"]) if number(token["nats"]) is None else frame.format(token["nats"], escape(token["text"]))
        for token in tokens
    )
    scale = "".join(f'<i style="--nats:{nats}"> {nats} </i>' for nats in range(0, 10, 3))
    of, step = record.tokens.get("of", ""), record.tokens.get("step")
    about = f"The beginning of the validation text{of}; loss in nats of the best model, of step {step}, "
    picture = svg("loss by place in the window", (4.6, 2.2), draw_positions, positions)
    place = f'<div class="half"><h3>Mean loss by place in the window</h3>{picture}</div>'
    about = f'<p class="soft heat">{escape(about)}at each token: <span>{scale} or more</span></p>'
    return f'{about}<pre class="sample heat" tabindex="0">{text}</pre>{place}'


def layers_section(record: Record) -> str:
    """Return each layer's gradient norm and size of update over the steps, side by side."""
    keys = {key for row in record.rows for key in row}
    shown = {of: name for of, name in LAYER_CHARTS.items() if any(key.startswith(of) for key in keys)}
    frame = "<div><h3>{}</h3>{}</div>"
    parts = [frame.format(name, svg(name, (4.4, 2.2), draw_layers, record, of)) for of, name in shown.items()]
    return f'<div class="small">{"".join(parts)}</div>' if parts else ""


def events_section(record: Record) -> str:
    """Return starts, restarts, stops and warnings, folded away."""
    rows = []
    for event in record.events:
        facts = {key: value for key, value in event.items() if key not in ("time", "event")}
        words = ", ".join(f"{key.replace('_', ' ')} {cell_text(value)}" for key, value in facts.items())
        rows.append((str(event.get("time", "")).replace("T", " ")[:19], event.get("event", ""), words))
    kinds = ", ".join(dict.fromkeys(cell_text(kind).replace("_", " ") for _, kind, _ in rows))
    return folded(f"What happened: {escape(kinds)}", table(rows))


def settings_section(record: Record) -> str:
    """Return the command, and the settings that differ from their defaults; the others are folded away."""
    config, defaults = record.config, values(TrainConfig())
    changed = [(key, value) for key, value in config.items() if value != defaults.get(key)]
    others = [(key, value) for key, value in config.items() if value == defaults.get(key)]
    command = f'<pre class="sample">{escape(record.command.strip())}</pre>' if record.command.strip() else ""
    return command + table(changed, "pairs") + folded(f"{len(others)} that have their default", table(others, "pairs"))


def folded(title: str, part: str) -> str:
    """Return a part of the page that a click on its title opens; "" if the part is empty."""
    return f"<details><summary>{title}</summary>{part}</details>" if part else ""


def table(rows: Iterable[Sequence[Any]], look: str = "wide") -> str:
    """Return rows of cells as a table; "" if there are no rows. "pairs" is a look for names and values."""
    cells = ("".join(f"<td>{escape(cell_text(cell))}</td>" for cell in row) for row in rows)
    lines = "".join(f"<tr>{line}</tr>" for line in cells)
    return f'<div class="{look}"><table>{lines}</table></div>' if lines else ""


def cell_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
