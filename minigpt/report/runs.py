"""`minigpt runs`: a table of the runs in a folder, or of the checkpoints of one run."""

import fcntl
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minigpt.checkpoint.folder import DamagedCheckpoint, best_checkpoint, list_checkpoints, read_manifest
from minigpt.config.compose import USUAL
from minigpt.config.convert import as_typed, settings
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.report.record import Record, best_row, number, read_record, stage, steps_of, text_of, trend
from minigpt.screen import table

MOST_COLUMNS = 5  # of settings that differ
SAID = ("experiment", "trainer.max_steps", "validate.every_steps")  # in the name, in the steps; and no cause of a loss


def list_runs(folder: str) -> str:
    """Return a table of the runs in a folder, the best of each text first; of a run, its checkpoints."""
    path = Path(os.path.expanduser(folder))
    if not path.is_dir():
        raise UserFault(f"{path}: no such folder. Give a folder of runs, or a run: minigpt runs DIR")
    if (path / "config.yaml").is_file():
        return list_checkpoints_of(path)
    runs = [file.parent for place in ("*", "trials/*") for file in path.glob(f"{place}/metrics.jsonl")]  # or a sweep
    if not runs:
        return f"No run in {path}. Train one: minigpt train run.dir={path / 'NAME'}"
    records = [read_record(run) for run in runs]
    varied = differing([record.config for record in records])
    head = ("run", "text", "steps", "val/loss", "bits/byte", "", "state", *varied)
    records.sort(key=lambda record: (text_of(record.config), _bits(record), record.name))  # of one text, the best first
    best = {text_of(record.config): record for record in reversed(records) if _bits(record) < math.inf}
    rows = [describe_run(record, varied, is_best=best.get(text_of(record.config)) is record) for record in records]
    return table([head, *rows])


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that decide the weights and differ between runs of the same text, those that vary most."""
    by_text = defaultdict[str, list[Mapping[str, Any]]](list)
    for config in configs:
        by_text[text_of(dict(config))].append(config)
    keys = [key for key, about in settings(TrainConfig).items() if about.role in ("weights", "schedule")]
    # 0 doesn't count: it stands for a number that another setting decides.
    values = {key: max(len({str(c.get(key)) for c in alike} - {"0"}) for alike in by_text.values()) for key in keys}
    varied, usual = [key for key in keys if values[key] > 1 and key not in SAID], USUAL.split()
    return sorted(varied, key=lambda key: (key not in usual, -values[key]))[:MOST_COLUMNS]


def newest_run(folder: str) -> str:
    """Return the run of a folder that was trained last."""
    rows = sorted(Path(folder).glob("*/metrics.jsonl"), key=lambda rows: rows.stat().st_mtime)
    if not rows:
        raise UserFault(f"no run in {folder}/. Name one: minigpt report run.dir=DIR")
    return str(rows[-1].parent)


def describe_run(record: Record, varied: Sequence[str] = (), *, is_best: bool = False) -> tuple[str, ...]:
    """Return a run's row in the table."""
    config, best = record.config, best_row(record.rows) or {}
    text = ", ".join(Path(place).name for place in text_of(config).split(", "))
    word = trend(record)[0].partition(":")[0]
    return (
        record.name,
        f"{text}, {config.get('tokenizer.name', '?')}",
        f"{steps_of(record):,}",
        _figure(best.get("val/loss")),
        _figure(best.get("val/bits_per_byte")),
        "best" if is_best else "",
        f"{state_of(record)}{f', {word}' if 'overfit' in word else ''}",
        *(as_typed(config.get(key, "-")) for key in varied),
    )


def state_of(record: Record) -> str:
    """Return "running" for a run that is training now, else how it ended, and at which of its steps."""
    try:
        with open(record.path / "run.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return stage(replace(record, events=[]), "running")
    except OSError:
        pass  # no lock, or a file system without
    return stage(record, "interrupted")


def list_checkpoints_of(run: Path) -> str:
    """Return a table of a run's checkpoints, oldest first."""
    best = best_checkpoint(run / "checkpoints")
    rows = [("checkpoint", "val/loss", "")]
    for path in list_checkpoints(run / "checkpoints"):
        try:
            loss, note = _figure(read_manifest(path).get("val_loss")), "best" if path == best else ""
        except DamagedCheckpoint as damage:
            loss, note = "-", f"damaged: {damage}"
        rows.append((str(path), loss, note))
    return table(rows) if len(rows) > 1 else f"{run} has no checkpoint yet."


def _bits(record: Record) -> float:
    bits = number((best_row(record.rows) or {}).get("val/bits_per_byte"))
    return math.inf if bits is None else bits


def _figure(value: Any) -> str:
    return "-" if number(value) is None else f"{value:.4f}"
