"""What a run directory says about its run. Missing or damaged files are left out: a report must not fail on them."""

import json
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from minigpt.config.convert import flatten
from minigpt.config.schema import CONVERSATIONS
from minigpt.faults import UserFault
from minigpt.files import read_json
from minigpt.rundir.rows import read_rows
from minigpt.screen import duration

ROSE = 1.01  # a validation loss so much above another has risen from it, or was to fall to it
GAIN = 0.995  # a longer budget buys less than this
LATE = 0.75  # of the steps: whether the loss fell since then tells whether it still falls
SLOW, FAST = 0.9, 1.3  # of the speed for which a budget was sized
COPIED = 0.5  # of the validation text, in the training text, too: then a loss says little
FEW = 3  # rows over which training losses are averaged
SIZED = "budget=TIME, which sizes the model for this text"
STATES = {"finished": "finished", "stopped": "stopped", "gave_up": "non-finite"}  # by a run's last event

Row = dict[str, Any]
Numbers = NDArray[np.float64]


@dataclass
class Record:
    """A run as its files describe it; what is missing is empty."""

    path: Path
    rows: list[Row]  # metrics.jsonl, one a step, in order of steps
    events: list[Row]
    samples: list[Row]
    config: dict[str, Any]  # settings by their dotted names
    choices: dict[str, Any]
    environment: dict[str, Any]
    baselines: list[Row]  # baseline.json, the lowest first: name, bits_per_byte and of which part of the text
    overlap: float  # share of the validation text that is in the training text, too
    budget: dict[str, Any]  # budget.json
    tokens: dict[str, Any]  # tokens.json: the losses of some validation text, as training/token_losses.py has them
    command: str  # that was typed, or ""
    parameters: int | None  # None: no checkpoint to count them in

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name


def read_record(run_dir: str | Path) -> Record:
    path = Path(os.path.expanduser(run_dir))
    if not (path / "metrics.jsonl").is_file():
        raise UserFault(f"run.dir={path}: no metrics.jsonl there. Give the folder of a run: minigpt runs lists them")
    rows = {row["step"]: row for row in read_rows(path / "metrics.jsonl") if number(row.get("step")) is not None}
    counted = read_mapping(path / "baseline.json")
    return Record(
        path=path,
        rows=[rows[step] for step in sorted(rows)],  # a step that was written twice counts once, as last written
        events=read_rows(path / "events.jsonl"),
        samples=[row for row in read_rows(path / "samples.jsonl") if type(row.get("step")) is int and "text" in row],
        config=flatten(read_mapping(path / "config.yaml")),
        choices=read_mapping(path / "choices.json"),
        environment=read_mapping(path / "environment.json"),
        baselines=sorted(counted.get("baselines", []), key=lambda row: row["bits_per_byte"]),
        overlap=counted.get("overlap") or 0.0,
        budget=read_mapping(path / "budget.json"),
        tokens=read_mapping(path / "tokens.json"),
        command=(path / "command.txt").read_text(errors="replace") if (path / "command.txt").is_file() else "",
        parameters=count_parameters(path / "checkpoints"),
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds a mapping; return an empty one if it can't be read as one."""
    try:
        content = read_json(path) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (OSError, UserFault, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def column(rows: list[Row], key: str) -> tuple[Numbers, Numbers]:
    """Return steps and values of the rows that hold a finite number under `key`."""
    points = [(row["step"], row[key]) for row in rows if number(row.get(key)) is not None]
    steps, values = np.array(points, dtype=float).reshape(-1, 2).T
    return steps, values


def best_row(rows: list[Row]) -> Row | None:
    """Return the row of the lowest validation loss, the first of equals; None before any validation."""
    validated = (row for row in rows if number(row.get("val/loss")) is not None)
    return min(validated, key=lambda row: row["val/loss"], default=None)


def stage(record: Record, unended: str) -> str:
    """Return how a run ended, by its last event, and at which of its steps; `unended` is the word if it did not."""
    state = STATES.get(last_turn(record).get("event", ""), unended)
    steps = record.config.get("trainer.max_steps")
    if state == "finished" or not steps or record.config.get("trainer.max_tokens"):
        return state
    return f"{state} at {steps_of(record):,} of {steps:,}"


def last_turn(record: Record) -> Row:
    """Return the last event that begins or ends a process of the run; an empty one if there is none."""
    turns = ("began", "continued", *STATES)
    return next((event for event in reversed(record.events) if event.get("event") in turns), {})


def steps_of(record: Record) -> int:
    """Return how many steps a run has made: not every step has a row."""
    return int(max(number(row.get("step")) or 0 for row in (last_turn(record), *record.rows[-1:])))


def trend(record: Record) -> tuple[str, str]:
    """Return where the validation loss was heading when a run ended, and what would help; "" and "" if unknown."""
    rows, budget = record.rows, record.budget
    validated = [row for row in rows if number(row.get("val/loss")) is not None]
    before = [row for row in validated if row["step"] <= LATE * validated[-1]["step"]]
    is_copied = record.overlap > COPIED
    grows = (
        bool(budget)
        and not is_copied
        and budget.get("predicted_for_longer", math.inf) <= GAIN * budget["predicted_bits_per_byte"]
    )
    if not before:
        return ("more time would help", "Type trainer.max_steps=N for more") if validated and grows else ("", "")
    best, first, last = best_row(rows) or {}, before[-1], validated[-1]
    if last["val/loss"] > ROSE * best["val/loss"]:
        steps, losses = column(rows, "train/loss")
        earlier, after = losses[steps <= best["step"]][-FEW:], losses[-FEW:]
        rose = f"Validation rose from {best['val/loss']:.3f} to {last['val/loss']:.3f}"
        if len(earlier) and after.mean() < min(earlier.mean(), last["val/loss"]):
            why = f"{rose} while training fell: the model learns this text by heart. The best checkpoint is kept"
            return f"overfit after step {best['step']:,}: more text would help, more steps would not", why
        return f"risen after step {best['step']:,}", f"{rose}. A lower optimizer.lr may help"
    if is_copied:
        return f"on text of which {record.overlap:.0%} is in the training text, too", ""
    if budget and not grows and "predicted_for_longer" in budget:
        return "more text would help: a longer budget would choose about the same", ""
    if first["val/loss"] > ROSE * last["val/loss"]:
        return "still falling: more time would help", "Type trainer.max_steps=N for more"
    return f"level since step {first['step']:,}: more steps would hardly help", "A larger model or more text may"


def verdict(record: Record) -> str:
    """Return in one sentence how good a run is, beside models that only count, and where its loss was heading."""
    best, (_, rewards) = best_row(record.rows), column(record.rows, "train/reward")
    bits = number((best or {}).get("val/bits_per_byte"))
    parts = ["not validated"] if best is None else [f"validation loss {best['val/loss']:.3f}"]
    if bits is not None:
        parts = [f"{bits:.3f} bits per byte"]
        for row in record.baselines:
            side = "better" if bits < row["bits_per_byte"] else "worse"
            parts.append(f"{side} than {row['name'].partition(' ')[0]} ({row['bits_per_byte']:.3f})")
    state, heading = stage(record, "unfinished"), trend(record)[0]
    if len(rewards):  # then no text is learned
        parts, heading = [f"mean reward {rewards[-FEW:].mean():.2f}, at first {rewards[:FEW].mean():.2f}"], ""
    if state == "finished":
        return ", ".join([*parts, *filter(None, [heading])])
    if state.startswith(STATES["gave_up"]):
        heading = "a lower optimizer.lr may help"
    elif not heading.startswith("overfit"):
        heading = "the same command continues"
    return f"{state}: {', '.join(parts)}; {heading}"


def beside_forecast(record: Record, seconds: float | None) -> list[str]:
    """Return lines that compare the result of a run with the forecast for its budget.

    `seconds`: the time of the whole command; None of a continued run.
    """
    budget, rows = record.budget, record.rows
    if not budget or (rows and rows[-1]["step"] > budget["settings"]["trainer.max_steps"]):
        return []  # it was continued with more steps than the forecast is for
    bits = [row["val/bits_per_byte"] for row in rows if row.get("val/bits_per_byte")]
    reached = f"; reached {min(bits):.3f}" if bits else ""
    foretold, low, high = (budget[key] for key in ("predicted_bits_per_byte", "low", "high"))
    lines = [f"Expected       {foretold:.3f} bits per byte ({low:.2f} to {high:.2f}){reached}"]
    if seconds is not None:
        lines.append(f"Time           {duration(seconds)} of {duration(budget['seconds'])}")
    speeds = [row["tokens_per_second"] for row in rows if row.get("tokens_per_second")]
    speed, measured = statistics.median(speeds or [0.0]), budget["tokens_per_second"]
    said = f"{speed:,.0f} tokens/s, {measured:,.0f} when it was measured: something else took the machine's time"
    if 0 < speed < SLOW * measured:
        lines.append(f"Slow           {said}")
    if speed > FAST * measured:
        lines.append(f"Fast           {said} then. To size for this speed, repeat the command with run.dir=NEW_DIR")
    return lines


def advice(record: Record) -> str:
    """Return what to type, if the verdict says where the loss was heading; else ""."""
    heading, why = trend(record)
    if "budget=" in record.command:  # it sets the steps
        why = why.replace("trainer.max_steps=N for more", "a longer budget: minigpt plan shows what it would buy")
    limit = last_turn(record).get("reason")
    why = why.replace("max_steps", limit) if limit in ("max_tokens", "epochs", "max_minutes") else why
    if heading not in verdict(record) or (not why and record.overlap > COPIED):
        return ""
    remedies = to_type(record.config, record.command)
    if not heading.startswith("overfit"):
        remedies = [remedy for remedy in remedies if remedy == SIZED]
    word = "Or type" if why.startswith("Type") else "Type"
    return ". ".join(filter(None, [why, f"{word} {', or '.join(remedies)}" if remedies else ""]))


def to_type(settings: Mapping[str, Any], command: str = "") -> list[str]:
    """Return what helps against overfitting and is not among these settings, by their dotted names, or in the command.

    A budget is for a new model of one text.
    """
    is_chat, is_tuned = settings.get("data.name") in CONVERSATIONS, settings.get("init.from")
    is_open = not ("budget=" in command or is_chat or is_tuned or mixed(settings))
    decays = (settings.get("optimizer.weight_decay") or 0) >= 1
    drops = settings.get("optimizer.name") == "muon" or (settings.get("model.dropout") or 0) >= 0.2
    remedy = "optimizer.weight_decay=1" if drops else "model.dropout=0.2"
    return [SIZED] * is_open + [remedy] * (not decays)


def mixed(settings: Mapping[str, Any]) -> list[str]:
    """Return the sources of a mixture."""
    return [key.removeprefix("data.mix.") for key in settings if key.startswith("data.mix.")]


def source_losses(row: Row) -> dict[str, float]:
    """Return the validation loss of each source of a mixture, by its name; nothing for a run of one text."""
    return {key.removeprefix("val/loss/"): value for key, value in row.items() if key.startswith("val/loss/")}


def text_of(config: dict[str, Any]) -> str:
    """Return what a run is trained on, as its settings name it."""
    return ", ".join(mixed(config)) or str(config.get("data.source") or config.get("data.name", "?"))


def nats_per_bit(rows: list[Row]) -> float | None:
    """Return how many nats per token are one bit per byte, which depends on tokenizer and split; None if unknown."""
    row = best_row([row for row in rows if number(row.get("val/bits_per_byte"))])
    return row["val/loss"] / row["val/bits_per_byte"] if row else None


def count_parameters(checkpoints: Path) -> int | None:
    """Return the parameters of the model, from the headers of its newest checkpoint; padding rows are not counted."""
    folders = sorted(checkpoints.glob("step-*"))
    try:
        with open(folders[-1] / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        rows, width = header["token_embedding.weight"]["shape"]
        sizes = [math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
        return sum(sizes) - (rows - read_json(folders[-1] / "tokenizer.json")["vocab_size"]) * width
    except (IndexError, OSError, ValueError, KeyError, OverflowError, MemoryError):
        return None
