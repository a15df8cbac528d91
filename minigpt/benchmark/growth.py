"""Whether cost grows as it should: with context, width, depth, batch, data, saves, position and time."""

import json
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.benchmark.bench import Bench, Section
from minigpt.benchmark.settings import Plan, full_path
from minigpt.benchmark.table import counted, markdown, spread
from minigpt.benchmark.tokens import make_large
from minigpt.benchmark.training import Measurement, first_step
from minigpt.faults import StorageFailure
from minigpt.report.growth import Panel, draw_growth
from minigpt.rundir.files import write_file

CONTEXTS = (64, 128, 256, 512, 1024)
SIZES = (10**6, 10**8, 10**9, 10**10, 10**11)  # bytes of shards
STARTS = (3, 1_000_000)  # steps that a run is continued at
STEP_TOKENS = 4096  # of each step while the context grows
NEVER = 10**9  # steps between saves that no run reaches
LONG = 5  # measurements of training that the long run is as long as
HEADS = ["tokens/s", "min", "max", "ms/step", "GFLOP/s", "of the best", "first step, s"]

Changes = dict[str, Any]  # settings of scripts/train.py


@dataclass(frozen=True)
class Point:
    """One place of one curve."""

    label: str
    changes: Changes
    steps: int  # timed
    n_bytes: int = 0  # of a data set of its own; 0: the benchmark's tokens
    start_at: int = 0  # the step that the run is continued at


def find_curves(plan: Plan) -> dict[tuple[str, str], list[Point]]:
    """(title, what is written along the axis) -> points: one thing is changed, all else stays the preset's."""
    model, few, long = plan.base.model, max(2, plan.preset.steps // 6), max(4, plan.preset.steps // 2)
    T, H, head_dim = model.block_size, model.n_head, model.n_embd // model.n_head
    most = 4 if model.n_embd <= 256 else 2
    factors, own = (most / 8, most / 4, most / 2, most), plan.base.batch_tokens // T
    sizes = [size for size in SIZES if size <= 1e9 * plan.config.size_limit_gb]
    savings = (max(1, long // 30), max(2, long // 10), max(3, long // 2), NEVER)
    return {
        ("Context length", "tokens"): [
            Point(f"{each}", {"model.block_size": each, **batch(STEP_TOKENS // each, each)}, few) for each in CONTEXTS
        ],
        ("Width", "n_embd"): [
            Point(f"{heads * head_dim}", {"model.n_embd": heads * head_dim, "model.n_head": heads}, few)
            for heads in whole(H, factors)
        ],
        ("Depth", "blocks"): [Point(f"{each}", {"model.n_layer": each}, few) for each in whole(model.n_layer, factors)],
        ("Batch", "sequences a step"): [
            Point(f"{each}", batch(each, T), few) for each in whole(own, (0.25, 0.5, 1, 2, 4))
        ],
        ("Data set", "MB of shards"): [
            Point(f"{size / 1e6:g}", {"tokenizer.name": "byte"}, few, n_bytes=size) for size in sizes
        ],
        ("Checkpoint interval", "steps"): [
            Point("at the end" if every == NEVER else f"{every}", {"checkpoint.every_steps": every}, long)
            for every in savings
        ],
        ("Continuing a run", "at step"): [Point(f"{each:,}", {}, few, start_at=each) for each in STARTS],
    }


def whole(size: int, factors: Sequence[float]) -> list[int]:
    """A size times each factor, each whole number once."""
    return list(dict.fromkeys(max(1, round(size * factor)) for factor in factors))


def batch(sequences: int, block_size: int) -> Changes:
    """The settings of a step of so many sequences, in one micro-batch."""
    return {"batch_tokens": sequences * block_size, "trainer.micro_batch": sequences}


def growth(bench: Bench) -> Section:
    """Measure all curves, round by round, and the memory of a long run; write growth.md and growth.png."""
    plan, curves = bench.plan, find_curves(bench.plan)
    folder = full_path(plan.config.write_to)
    try:  # now, not when all is measured
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "growth.md", "Measuring ...\n")
    except OSError as error:
        raise StorageFailure(f"write_to={folder} can't be written: {error.strerror}. Give a folder of yours") from error
    for n_bytes in sorted({point.n_bytes for points in curves.values() for point in points} - {0}):
        bench.say(f"Making {n_bytes / 1e6:g} MB of tokens")
        make_large(bench.folder / f"bytes-{n_bytes}", n_bytes)
    found: dict[str, dict[str, list[Measurement]]] = {title: {} for title, _ in curves}
    for number in range(plan.config.rounds):
        known: dict[str, Measurement] = {}  # several curves go through some points
        for (title, _), points in curves.items():
            for point in points:
                one = measure_point(bench, point, known)
                found[title].setdefault(point.label, []).append(one)
                bench.tell(number, f"{title:<20} {point.label:>10} {one['ms']:10,.2f} ms/step")
    memory = measure_memory(bench)
    text = "\n\n".join([*(describe(title, unit, found[title]) for title, unit in curves), describe_memory(memory)])
    text += f"\n\nOne thing changed at a time; medians and ends of {counted(plan.config.rounds, 'round')}."
    write_file(folder / "growth.md", f"```\n{bench.about}\n```\n\n{text}\n")
    panels = [panel(title, unit, found[title]) for title, unit in curves]
    resident = {f"{step:,}": [mb] for step, mb in memory}
    draw_growth([*panels, Panel("Memory of a long run", "steps done", "peak MB", resident)], folder / "growth.png")
    return Section("Growth", f"{text}\n\nWritten to {folder / 'growth.md'}, drawn in {folder / 'growth.png'}", found)


def measure_point(bench: Bench, point: Point, known: dict[str, Measurement]) -> Measurement:
    """One measurement of a point, or the one that is known of its config."""
    warm_up, run = max(1, bench.plan.preset.warm_up // 4), bench.folder / "growth"
    changes = {"validate.every_steps": 0, "schedule.warmup_steps": 1, "run.dir": str(run), **point.changes}
    tokens = f"bytes-{point.n_bytes}" if point.n_bytes else "tokens"
    config = bench.training(changes, steps=point.start_at + warm_up + point.steps + 1, tokens=tokens)
    key = json.dumps(config)
    if key not in known:
        known[key] = bench.measure("steps.train_py", config=config, warm_up=warm_up, start_at=point.start_at)
        shutil.rmtree(run)
    return known[key]


def measure_memory(bench: Bench) -> list[tuple[int, float]]:
    """(steps done, peak MB so far) along a run five measurements long, with rows, validations, samples and saves."""
    steps = LONG * bench.plan.preset.steps
    bench.say(f"A run of {steps:,} steps, its memory watched")
    often = {f"{name}.every_steps": max(1, steps // 6) for name in ("validate", "samples", "checkpoint")}
    config = bench.training({**often, "run.dir": str(bench.folder / "memory")}, steps=steps)
    found = bench.measure("steps.train_py", config=config, warm_up=1, memory_every=max(1, steps // 60))
    return [(step, mb) for step, mb in found["memory"]]


def speeds(measurements: Sequence[Measurement]) -> list[float]:
    """Tokens/s of each measurement."""
    return [1e3 * each["batch_tokens"] / each["ms"] for each in measurements]


def rates(points: dict[str, list[Measurement]]) -> list[float]:
    """FLOP/s of each point: 6 per matrix weight and token, and what attention takes."""
    return [statistics.median(speeds(each)) * each[0]["flops_per_token"] for each in points.values()]


def describe(title: str, unit: str, points: dict[str, list[Measurement]]) -> str:
    """The table of a curve; of the best: beside the highest FLOP/s, 100 % where cost grows as the arithmetic does."""
    rows = []
    for (label, measurements), rate in zip(points.items(), rates(points), strict=True):
        milliseconds = statistics.median(each["ms"] for each in measurements)
        first = statistics.median(first_step(each) or 0 for each in measurements)
        share = f"{100 * rate / max(rates(points)):.0f} %"
        cells = [f"{milliseconds:,.2f}", f"{rate / 1e9:,.1f}", share, f"{first:.2f}"]
        rows.append([label, *spread(speeds(measurements)).cells(), *cells])
    return f"### {title}\n\n{markdown([unit, *HEADS], rows)}"


def panel(title: str, unit: str, points: dict[str, list[Measurement]]) -> Panel:
    """The picture of a curve: tokens/s, beside what they were at the best FLOP/s."""
    best = max(rates(points))
    ideal = [best / each[0]["flops_per_token"] for each in points.values()]
    return Panel(title, unit, "tokens/s", {label: speeds(each) for label, each in points.items()}, ideal)


def describe_memory(memory: list[tuple[int, float]]) -> str:
    """The memory of a long run in a sentence."""
    early, last = memory[len(memory) // 4][1], memory[-1][1]
    return (
        f"### Memory of a long run\n\nPeak memory over {memory[-1][0]:,} steps with rows, validations, samples and "
        f"saves: {early:,.0f} MB up to a quarter of them, {last:,.0f} MB up to the end."
    )
