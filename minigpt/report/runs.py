"""`minigpt runs`: a table of the runs in a folder, or of the checkpoints of one run."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.checkpoint.folder import DamagedCheckpoint, best_checkpoint, list_checkpoints, read_manifest
from minigpt.faults import UserFault
from minigpt.report.record import Row, best_row, number, overfitting, read_record, text_of
from minigpt.screen import table

STATES = {"finished": "finished", "stopped": "stopped", "gave_up": "non-finite"}  # by a run's last event


def list_runs(folder: str) -> str:
    """Return a table of the runs in a folder, the one that changed last at the end; of a run, its checkpoints."""
    path = Path(os.path.expanduser(folder))
    if not path.is_dir():
        raise UserFault(f"{path}: no such folder. Give a folder of runs, or a run: minigpt runs DIR")
    if (path / "config.yaml").is_file():
        return list_checkpoints_of(path)
    runs = [file.parent for file in path.glob("*/metrics.jsonl")]
    if not runs:
        return f"No run in {path}. Train one: minigpt train run.dir={path / 'NAME'}"
    head = ("run", "text", "steps", "val/loss", "bits/byte", "state")
    runs.sort(key=lambda run: (run / "metrics.jsonl").stat().st_mtime)
    return table([head, *map(describe_run, runs)])


def newest_run(folder: str) -> str:
    """Return the run of a folder that was trained last."""
    rows = sorted(Path(folder).glob("*/metrics.jsonl"), key=lambda rows: rows.stat().st_mtime)
    if not rows:
        raise UserFault(f"no run in {folder}/. Name one: minigpt report run.dir=DIR")
    return str(rows[-1].parent)


def describe_run(run: Path) -> tuple[str, ...]:
    """Return a run's row in the table."""
    record = read_record(run)
    config, best = record.config, best_row(record.rows) or {}
    steps = f"{record.rows[-1]['step'] if record.rows else 0:,}"
    if config.get("trainer.max_steps") and not config.get("trainer.max_tokens"):
        steps += f" of {config['trainer.max_steps']:,}"
    text = ", ".join(Path(place).name for place in text_of(config).split(", "))
    return (
        run.name,
        f"{text}, {config.get('tokenizer.name', '?')}",
        steps,
        _figure(best.get("val/loss")),
        _figure(best.get("val/bits_per_byte")),
        state_of(run, record.events) + (f", overfits from step {best['step']:,}" if overfitting(record.rows) else ""),
    )


def state_of(run: Path, events: Sequence[Row]) -> str:
    """Return "running" for a run that is training now, else how it ended."""
    try:
        with open(run / "run.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except OSError:
        pass  # no lock, or a file system without
    turns = [event["event"] for event in events if event.get("event") in ("began", "continued", *STATES)]
    return STATES.get(turns[-1], "interrupted") if turns else "interrupted"


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


def _figure(value: Any) -> str:
    return "-" if number(value) is None else f"{value:.4f}"
