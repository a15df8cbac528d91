"""report.html and loss.png: a run on one page that needs nothing else."""

import html
import json
import shlex
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minigpt.config.convert import flatten, to_dict
from minigpt.config.schema import TrainConfig
from minigpt.faults import StorageFailure
from minigpt.report.curves import draw_loss, draw_losses, draw_metric, drawing, svg_of
from minigpt.report.frame import PAGE, STYLE
from minigpt.report.record import Record, best_row, column, number, read_record, training_seconds
from minigpt.report.words import duration, short_number
from minigpt.rundir.files import write_file

SAMPLES_SHOWN = 8  # the others fold away

escape = html.escape


def write_report(run_dir: str | Path) -> None:
    """Draw loss.png and write report.html into a run directory; each replaces its forerunner in one step.

    Raises:
        UserFault: it is no run directory.
        StorageFailure: it can't be written.
    """
    record = read_record(run_dir)
    try:
        draw_loss(record, record.path / "loss.png")
        write_file(record.path / "report.html", page(record))
    except OSError as error:
        raise StorageFailure(
            f"run.dir={record.path}: the report can't be written there: {error.strerror or error}. "
            "Make room, or mend the folder's permissions"
        ) from error


def page(record: Record) -> str:
    """The run as one HTML page."""
    sections = [
        ("Loss", charts(record)),
        ("What it writes", samples_section(record)),
        ("Commands", commands_section(record)),
        ("What happened", events_section(record)),
        ("Settings", settings_section(record)),
        ("Machine", machine_section(record)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections if content)
    return PAGE.format(
        name=escape(record.name), style=STYLE, summary=escape(summary(record)), figures=figures(record), body=body
    )


def summary(record: Record) -> str:
    """Model and data in a line."""
    model, data = record.config.get("model"), record.config.get("data")
    parts = [f"GPT with {record.parameters:,} parameters" if record.parameters else "GPT"]
    if isinstance(model, dict):
        words = {"n_layer": "{} layers", "n_head": "{} heads", "n_embd": "width {}", "block_size": "context {}"}
        parts += [text.format(model[key]) for key, text in words.items() if key in model]
    if isinstance(data, dict) and data.get("name"):
        tokenizer = record.config.get("tokenizer")
        name = tokenizer.get("name") if isinstance(tokenizer, dict) else None
        parts.append(f"text {data.get('source') or data['name']}" + (f", tokenizer {name}" if name else ""))
    return " · ".join(parts)


def figures(record: Record) -> str:
    """The headline figures."""
    rows, cards = record.rows, []
    best = best_row(rows)
    if best:
        final = [row for row in rows if number(row.get("val/loss")) is not None][-1]
        note = "" if final is best else f"best, step {best['step']:,}; final {final['val/loss']:.4f}"
        cards.append((f"{best['val/loss']:.4f}", "validation loss, nats per token", note))
        bits = number(best.get("val/bits_per_byte"))
        if bits is not None:
            base = number(record.baseline.get("bits_per_byte"))
            note = f"{record.baseline.get('name', 'baseline')}: {base:.3f}" if base is not None else ""
            cards.append((f"{bits:.3f}", "bits per byte", note))
    if rows:
        tokens = number(rows[-1].get("tokens"))
        note = f"{rows[-1]['step']:,} steps"
        cards.append((short_number(tokens), "tokens read", note) if tokens else (note, "", ""))
        seconds = training_seconds(rows)
        if seconds:
            cards.append((duration(seconds), "of training", ""))
        speeds, uses = column(rows, "tokens_per_second")[1], column(rows, "mfu")[1]
        if speeds:
            note = f"MFU {statistics.median(uses):.1%}" if uses else ""
            cards.append((short_number(statistics.median(speeds)), "tokens per second", note))
    return "".join(
        f"<div><b>{escape(value)}</b><span>{escape(label)}</span><small>{escape(note)}</small></div>"
        for value, label, note in cards
    )


def charts(record: Record) -> str:
    """The losses, large, then learning rate, gradient norm and speed side by side."""
    if not record.rows:
        return "<p>No step has been logged yet.</p>"
    with drawing(size=(8.6, 3.4), font_size=9) as figure:
        draw_losses(figure.subplots(), record)
        large = svg_of(figure, "loss over optimizer steps")
    small = []
    for key, name in (("lr", "learning rate"), ("train/grad_norm", "gradient norm"), ("tokens_per_second", "tokens/s")):
        if len(column(record.rows, key)[0]) > 1:
            with drawing(size=(3.6, 1.6), font_size=9) as figure:
                draw_metric(figure.subplots(), record, key, name)
                small.append(svg_of(figure, name))
    return f'<div class="wide">{large}</div><div class="small">{"".join(small)}</div>'


def samples_section(record: Record) -> str:
    """Samples from first to last; of many, some spread evenly, the others folded away."""
    samples = [sample for sample in record.samples if isinstance(sample.get("text"), str)]
    if not samples:
        return ""
    count = min(SAMPLES_SHOWN, len(samples))
    last = len(samples) - 1
    shown = {round(place * last / max(1, count - 1)) for place in range(count)} if last else {0}
    others = [sample for place, sample in enumerate(samples) if place not in shown]
    text = "".join(_sample(samples[place]) for place in sorted(shown))
    if others:
        text += f"<details><summary>{len(others)} more</summary>{''.join(map(_sample, others))}</details>"
    return text


def _sample(sample: Mapping[str, Any]) -> str:
    step = number(sample.get("step"))
    title = f"step {step:,}" if step is not None else ""
    return f'<article><h3>{title}</h3><pre class="sample">{escape(sample["text"].rstrip())}</pre></article>'


def commands_section(record: Record) -> str:
    """What to type next."""
    run = shlex.quote(str(record.path))
    commands = [("Let it write", f'minigpt sample checkpoint={run} prompt="..."')]
    if record.command:
        commands.append(("Continue it, or see its result again", record.command))
    commands.append(("Draw this page again", f"minigpt report run.dir={run}"))
    return "".join(f"<h3>{escape(name)}</h3><pre>{escape(command)}</pre>" for name, command in commands)


def events_section(record: Record) -> str:
    """Starts, restarts, stops and warnings."""
    rows = []
    for event in record.events:
        facts = {
            key: value
            for key, value in event.items()
            if key in ("step", "was", "now") or (key not in ("time", "event") and value)
        }
        words = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in facts.items())
        rows.append((str(event.get("time", "")).replace("T", " ")[:19], str(event.get("event", "")), words))
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{cells}</table></div>' if rows else ""


def settings_section(record: Record) -> str:
    """Every setting by group; those that differ from the schema's default stand out."""
    if not record.config:
        return ""
    defaults = flatten(to_dict(TrainConfig()))
    groups: dict[str, dict[str, Any]] = {}
    for key, value in flatten(record.config).items():
        group, _, name = str(key).rpartition(".")
        groups.setdefault(group or "run", {})[name] = value

    def differs(group: str) -> Callable[[str], bool]:
        way = "" if group == "run" else group + "."
        return lambda name: groups[group][name] != defaults.get(f"{way}{name}", defaults.get(f"{group}.{name}"))

    tables = "".join(
        f"<div><h3>{escape(group)}</h3>{table(values, differs(group))}</div>" for group, values in groups.items()
    )
    return f'<p class="note">Bold: differs from the default.</p><div class="groups">{tables}</div>'


def machine_section(record: Record) -> str:
    """What the run chose by itself, and where it ran."""
    parts = (("chosen automatically", record.choices), ("environment", record.environment))
    tables = "".join(f"<div><h3>{name}</h3>{table(values)}</div>" for name, values in parts if values)
    return f'<div class="pair">{tables}</div>' if tables else ""


def table(values: Mapping[str, Any], stands_out: Callable[[str], bool] = lambda _: False) -> str:
    """Names and values, one pair a line."""
    if not values:
        return ""
    lines = []
    for name, value in values.items():
        emphasis = ' class="own"' if stands_out(str(name)) else ""
        lines.append(f"<tr{emphasis}><td>{escape(str(name))}</td><td>{escape(_value(value))}</td></tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
