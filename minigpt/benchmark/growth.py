"""Whether cost grows as it should: with context, width, depth, batch, data, saves, position and time."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt.benchmark.growth_text import Growth, describe_growth, find_panels, first_step
from minigpt.benchmark.points import Setup, arguments, few_steps, find_points, size_text, warm_up
from minigpt.benchmark.process import run_turn
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.tokens import make_large
from minigpt.report.growth import draw_growth

FAR = 1_000_000  # the step that a run is continued at
NEAR = 3  # the step that it is compared with
LONG = 5  # turns of training that the long run is as long as
BYTES = "tokenizer=byte"  # what a data set of its own consists of

Say = Callable[[str], object]


def measure_growth(plan: Plan, folder: Path, tokens: Path, *, threads: int, say: Say, about: str) -> str:
    """All curves, round by round; writes growth.md and growth.png.

    Args:
        plan: the benchmark.
        folder: for the runs.
        tokens: where the benchmark's tokens are.
        threads: of the environment.
        say: told of each turn.
        about: what was measured, for growth.md.

    Returns:
        The tables.
    """
    points = find_points(plan)
    places = {0: tokens}
    for n_bytes in sorted({point.setup.n_bytes for point in points} - {0}):
        say(f"Making {size_text(n_bytes)} of tokens")
        places[n_bytes] = folder / f"bytes-{n_bytes}"
        make_large(places[n_bytes], n_bytes)
    grown = Growth(points)
    for number in range(plan.rounds):
        measured: set[Setup] = set()
        for point in points:
            if point.setup not in measured:
                measured.add(point.setup)
                run = folder / "growth"
                words = arguments(plan, point.setup, places[point.setup.n_bytes], f"run.dir={run}")
                turn = run_turn(folder, "whole", threads=threads, arguments=words, warm_up=warm_up(plan))
                shutil.rmtree(run)
                grown.turns.setdefault(point.setup, []).append(turn)
                what = f"{point.section:<8} {point.label:>10}"
                say(f"Round {number + 1}/{plan.rounds}  {what} {turn['ms']:10,.2f} ms/step")
    largest = max(places)
    grown.resumed = measure_resuming(plan, folder, places[largest], byte=bool(largest), threads=threads, say=say)
    grown.memory = measure_memory(plan, folder, tokens, threads=threads, say=say)
    text = describe_growth(plan, grown)
    plan.write_to.mkdir(parents=True, exist_ok=True)
    (plan.write_to / "growth.md").write_text(f"```\n{about}\n```\n\n{text}\n")
    draw_growth(find_panels(grown), plan.write_to / "growth.png")
    return text


def measure_resuming(
    plan: Plan, folder: Path, tokens: Path, *, byte: bool, threads: int, say: Say
) -> dict[int, list[dict[str, Any]]]:
    """Step -> a turn per round of a run that is continued there."""
    common = ["validate.every_steps=0", "schedule.warmup_steps=1", *([BYTES] if byte else [])]
    found: dict[int, list[dict[str, Any]]] = {NEAR: [], FAR: []}
    for step in found:
        begun = plan.arguments(tokens, *common, f"run.dir={folder / f'resume-{step}'}", steps=NEAR)
        run_turn(folder, "begin_at", threads=threads, arguments=begun, step=step)
    for number in range(plan.rounds):
        for step, turns in found.items():
            run = folder / "resume"
            shutil.copytree(folder / f"resume-{step}", run)
            last = step + warm_up(plan) + few_steps(plan) + 1
            words = plan.arguments(tokens, *common, f"run.dir={run}", steps=last)
            turn = run_turn(folder, "whole", threads=threads, arguments=words, warm_up=warm_up(plan))
            shutil.rmtree(run)
            turns.append(turn)
            what = f"continued at step {step:,}: first step after {first_step(turn):.2f} s"
            say(f"Round {number + 1}/{plan.rounds}  {what}, {turn['ms']:,.2f} ms/step")
    return found


def measure_memory(plan: Plan, folder: Path, tokens: Path, *, threads: int, say: Say) -> list[tuple[int, float]]:
    """(steps done, resident MB) along a run of five turns' length, with rows, validations, samples and saves."""
    steps = LONG * plan.steps
    say(f"A run of {steps:,} steps, its memory watched")
    some, often = max(1, steps // 6), max(1, steps // 60)
    settings = [f"{name}.every_steps={some}" for name in ("validate", "samples", "checkpoint")]
    words = plan.arguments(tokens, *settings, f"run.dir={folder / 'memory'}", steps=steps)
    turn = run_turn(folder, "whole", threads=threads, arguments=words, warm_up=1, memory_every=often)
    return [(step, mb) for step, mb in turn["memory"]]
