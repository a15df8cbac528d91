"""A run that stands at a step it never made: to see that continuing costs the same anywhere."""

import json
from pathlib import Path
from typing import Any

from minigpt.checkpoint.pack import STATE, to_json
from minigpt.checkpoint.store import MANIFEST, latest_usable, write_checkpoint
from minigpt.config.compose import compose
from minigpt.training.run import train


def begin_at(task: dict[str, Any]) -> dict[str, Any]:
    """Begin a run, then write its last checkpoint once more under another step's number.

    Args:
        task: arguments (of scripts/train.py, run.dir included), step.
    """
    config = compose("train", task["arguments"])
    assert train(config) == 0
    folder = Path(str(config.run.dir)) / "checkpoints"
    checkpoint = latest_usable(folder)
    assert checkpoint is not None
    files = {path.name: [path.read_bytes()] for path in checkpoint.iterdir() if path.name != MANIFEST}
    state = json.loads(files[STATE][0]) | {"step": task["step"], "tokens": task["step"] * config.batch_tokens}
    write_checkpoint(folder, task["step"], {**files, STATE: [to_json(state)]}, {})
    return {"from": checkpoint.name}
