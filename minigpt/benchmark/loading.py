"""Tokens per second that the data order and the shards deliver, without any training."""

import itertools
import time
from typing import Any

from minigpt.benchmark.steps import batches_of, settle
from minigpt.config.compose import compose
from minigpt.data.loading import Loading

WORKERS = (0, 2)  # data.workers
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
    batches = batches_of(config, prepared, choices)
    size = choices.micro_batch * config.model.block_size
    found: dict[str, list[float]] = {}
    for _ in range(task["rounds"]):
        for workers, step in itertools.product(WORKERS, (0, FAR)):
            loading = Loading(batches, start=step * choices.accumulate, workers=workers)
            found.setdefault(f"data.workers={workers}, from step {step:,}", []).append(speed(loading, size))
    return {"batch_tokens": size, "rows": [[name, speeds] for name, speeds in found.items()]}


def speed(loading: Loading, size: int) -> float:
    """Tokens per second after the first batch."""
    stream = iter(loading)
    next(stream)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        next(stream)
        count += 1
    seconds = time.perf_counter() - began
    stream.close()  # type: ignore[attr-defined]
    return count * size / seconds
