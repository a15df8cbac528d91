"""Tokens per second that the data order and the shards deliver, without any training."""

import time
from collections.abc import Iterable
from typing import Any

from minigpt.benchmark.bench import Bench, Section
from minigpt.benchmark.steps import batches_of, settle
from minigpt.benchmark.table import counted, spread

FAR = 1_000_000  # a step far into a run: where it stands must cost nothing
SECONDS = 0.5  # of each measurement
HEADS = ["batches made", "tokens/s", "min", "max", "ms a batch", "x training's need"]


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Make batches as training asks for them.

    Args:
        task: config, rounds.

    Returns:
        batch_tokens, rows: [from where, [tokens/s of each round]].
    """
    config, prepared, choices = settle(task)
    size = choices.micro_batch * config.model.block_size
    found: dict[str, list[float]] = {}
    for _ in range(task["rounds"]):
        for step in (0, FAR):
            batches = batches_of(config, prepared, choices, step)
            found.setdefault(f"from step {step:,}", []).append(speed(batches, size))
    return {"batch_tokens": size, "rows": list(found.items())}


def speed(batches: Iterable[Any], size: int) -> float:
    """Tokens per second after the first batch."""
    stream = iter(batches)
    next(stream)
    began, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < SECONDS:
        next(stream)
        count += 1
    return count * size / seconds


def loading(bench: Bench) -> Section:
    """Measure data loading in a process of its own, beside what training takes where that was measured."""
    rounds, need = bench.plan.config.rounds, bench.tokens_per_second
    found = bench.measure("loading.measure", config=bench.training(), rounds=rounds)
    size, rows = found["batch_tokens"], []
    for name, speeds in found["rows"]:
        each = spread(speeds)
        times = f"{each.median / need:,.1f}" if need else "?"
        rows.append([name, *each.cells(), f"{1e3 * size / each.median:.3f}", times])
    return Section("Data loading", HEADS, rows, f"Batches of {size:,} tokens, {counted(rounds, 'round')}.")
