"""Tokens per second that the data order and the shards deliver, without any training."""

import time
from collections.abc import Iterable
from typing import Any

from minigpt.benchmark.steps import batches_of, settle
from minigpt.config.compose import compose

FAR = 1_000_000  # a step far into a run: where it stands must cost nothing
SECONDS = 0.5  # of each measurement


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Batches as training asks for them.

    Args:
        task: arguments (of scripts/train.py), rounds.

    Returns:
        batch_tokens, rows: [where, [tokens/s of each round]].
    """
    config = compose("train", task["arguments"])
    prepared, choices = settle(config)
    size = choices.micro_batch * config.model.block_size
    found: dict[str, list[float]] = {}
    for _ in range(task["rounds"]):
        for step in (0, FAR):
            batches = batches_of(config, prepared, choices, start_step=step)
            found.setdefault(f"from step {step:,}", []).append(speed(batches, size))
    return {"batch_tokens": size, "rows": [[name, speeds] for name, speeds in found.items()]}


def speed(batches: Iterable[Any], size: int) -> float:
    """Tokens per second after the first batch."""
    stream = iter(batches)
    next(stream)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        next(stream)
        count += 1
    seconds = time.perf_counter() - began
    return count * size / seconds
