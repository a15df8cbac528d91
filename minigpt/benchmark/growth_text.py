"""Growth in tables and panels: speeds beside what arithmetic alone would let one expect."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minigpt.benchmark.points import STEP_TOKENS, TITLES, Point, Setup
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import Spread, counted, markdown, spread
from minigpt.report.growth import Panel

Turn = dict[str, Any]


@dataclass
class Growth:
    """What was measured."""

    points: Sequence[Point]
    turns: dict[Setup, list[Turn]] = field(default_factory=dict)  # a turn per round
    resumed: dict[int, list[Turn]] = field(default_factory=dict)  # step -> a turn per round
    memory: list[tuple[int, float]] = field(default_factory=list)  # (steps done, resident MB)


@dataclass(frozen=True)
class Cost:
    """Of one point."""

    point: Point
    speed: Spread  # tokens/s
    milliseconds: float  # per step
    flops: float  # per token
    first_step: float  # seconds


def first_step(turn: Turn) -> float:
    """Seconds from the start of the process to its first optimizer step."""
    return turn["first_step_at"] - turn["began"]


def find_costs(grown: Growth, section: str) -> list[Cost]:
    """Of each point of a curve."""
    found = []
    for point in grown.points:
        if point.section == section:
            turns = grown.turns[point.setup]
            found.append(
                Cost(
                    point,
                    spread([1e3 * turn["batch_tokens"] / turn["ms"] for turn in turns]),
                    spread([turn["ms"] for turn in turns]).median,
                    turns[0]["flops_per_token"],
                    spread([first_step(turn) for turn in turns]).median,
                )
            )
    return found


def ideals(costs: Sequence[Cost]) -> list[float]:
    """Tokens/s of each point if it computed as fast, in FLOP/s, as the fastest point of the curve."""
    best = max(cost.speed.median * cost.flops for cost in costs)
    return [best / cost.flops for cost in costs]


def describe_growth(plan: Plan, grown: Growth) -> str:
    """A table per curve."""
    parts = []
    for section in dict.fromkeys(point.section for point in grown.points):
        title, unit = TITLES[section]
        costs = find_costs(grown, section)
        rows = [_row(cost, ideal) for cost, ideal in zip(costs, ideals(costs), strict=True)]
        heads = [unit, "tokens/s", "min", "max", "ms/step", "GFLOP/s", "of the best", "first step, s"]
        parts.append(f"### {title}\n\n{markdown(heads, rows)}")
    rows = [
        [f"{step:,}", spread([first_step(turn) for turn in turns]).text(), _milliseconds(turns).text()]
        for step, turns in grown.resumed.items()
    ]
    parts.append(f"### Continuing a run\n\n{markdown(['at step', 'first step, s', 'ms/step'], rows)}")
    early, last = grown.memory[len(grown.memory) // 4][1], grown.memory[-1][1]
    parts.append(
        f"### Memory of a long run\n\nResident memory over {grown.memory[-1][0]:,} steps with rows, validations, "
        f"samples and saves: {early:,.0f} MB after a quarter of them, {last:,.0f} MB at the end, "
        f"{max(mb for _, mb in grown.memory):,.0f} MB at most."
    )
    rounds = counted(plan.rounds, "round")
    parts.append(
        f"preset={plan.preset} with one thing changed at a time; medians and ends of {rounds}. While the context "
        f"grows, a step keeps {STEP_TOKENS:,} tokens. GFLOP/s: 6 per matrix weight and token, and attention's 12 per "
        "block, width and context; of the best: beside the highest of the table, 100 % where cost grows as the "
        "arithmetic does. First step: from the start of the process, tokens prepared. Data sets from 1 GB on are links "
        "to a shard of 0.2 GB, so the disk's own speed is not in it."
    )
    return "\n\n".join(parts)


def _row(cost: Cost, ideal: float) -> list[str]:
    return [
        cost.point.label,
        *(f"{speed:,.0f}" for speed in (cost.speed.median, cost.speed.low, cost.speed.high)),
        f"{cost.milliseconds:,.2f}",
        f"{cost.speed.median * cost.flops / 1e9:,.1f}",
        f"{cost.speed.median / ideal:.0%}".replace("%", " %"),
        f"{cost.first_step:.2f}",
    ]


def _milliseconds(turns: Sequence[Turn]) -> Spread:
    return spread([turn["ms"] for turn in turns])


def find_panels(grown: Growth) -> list[Panel]:
    """What growth.png shows."""
    drawn = []
    for section in dict.fromkeys(point.section for point in grown.points):
        title, unit = TITLES[section]
        costs = find_costs(grown, section)
        labels, speeds = [cost.point.label for cost in costs], [cost.speed for cost in costs]
        drawn.append(_panel(title, unit, "tokens/s", labels, speeds, ideals(costs)))
    starts = [spread([first_step(turn) for turn in turns]) for turns in grown.resumed.values()]
    steps = [f"{step:,}" for step in grown.resumed]
    drawn.append(_panel("Continuing a run", "at step", "first step, s", steps, starts))
    memory = [spread([mb]) for _, mb in grown.memory]
    steps = [f"{step:,}" for step, _ in grown.memory]
    return [*drawn, _panel("Memory of a long run", "steps done", "resident MB", steps, memory)]


def _panel(
    title: str, x: str, y: str, labels: Sequence[str], values: Sequence[Spread], ideal: Sequence[float] = ()
) -> Panel:
    medians, lows, highs = ([getattr(each, name) for each in values] for name in ("median", "low", "high"))
    return Panel(title, x, y, labels, medians, lows, highs, ideal)
