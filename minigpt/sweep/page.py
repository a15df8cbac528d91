"""sweep.html: a sweep on one page that needs nothing else."""

import functools
import html
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from minigpt.redact import redact
from minigpt.report.frame import PAGE, STYLE
from minigpt.report.page import table
from minigpt.report.record import number
from minigpt.report.svg import Line, line_chart
from minigpt.report.words import duration, short_number
from minigpt.rundir.files import write_file
from minigpt.rundir.rows import read_rows
from minigpt.sweep.charts import SHADES, bars, history, parallel, scatter, shades
from minigpt.sweep.propose import importances
from minigpt.sweep.results import run_of
from minigpt.sweep.settings import Plan
from minigpt.sweep.space import text_of
from minigpt.sweep.table import value_text
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, Trial, best_trial, ranked

MAX_POINTS = 80  # of a learning curve

# From blue for the best to sand for the worst, the same on light and dark paper.
COLOURS = ("#1f5fd6", "#2f86c9", "#31a3a8", "#4fae7c", "#8fae4f", "#c0a043", "#c98f58", "#b89a86")
SWEEP_STYLE = STYLE + "".join(
    f".s{shade} {{ --shade: {colour}; }}" for shade, colour in enumerate(COLOURS[:SHADES])
) + """
circle.complete { fill: var(--shade); } circle.pruned { fill: var(--paper); stroke: var(--shade); stroke-width: 1.5; }
path.failed { stroke: var(--val); stroke-width: 1.8; fill: none; } .bestline { stroke: var(--soft); stroke-width: 1.5; }
polyline.thread, polyline.learn { stroke: var(--shade); stroke-width: 1.3; opacity: .7; }
polyline.pruned { opacity: .4; stroke-dasharray: 4 3; } polyline.s0 { stroke-width: 2; opacity: .95; }
.axis { stroke: var(--soft); } .bar { fill: var(--train); } text.name { font-weight: 600; fill: var(--ink); }
text.tick { dominant-baseline: central; font-size: 11px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.board td, .board th { white-space: nowrap; padding: 3px 12px 3px 0; text-align: right; width: auto; }
.board th { color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); }
.board td:last-child, .board th:last-child { text-align: left; white-space: normal; } .wide svg { min-width: 700px; }
.key span::before { display: none; } .key b { color: var(--shade); }
"""  # fmt: skip


def write_page(plan: Plan, trials: Sequence[Trial]) -> None:
    """Draw the page; it replaces its forerunner in one step."""
    write_file(plan.folder / "sweep.html", page(plan, trials))


def page(plan: Plan, trials: Sequence[Trial]) -> str:
    """The sweep as one HTML page."""
    metric = plan.config.sweep.metric
    sections = [
        ("Trials in their order", key_of_marks() + history(trials) if any(t.finished for t in trials) else ""),
        (f"From the settings to {metric}", wide(parallel(plan.axes, trials, metric))),
        ("Importance of the settings", importance_section(plan, trials)),
        (f"{metric} over each setting", scatters(plan, trials)),
        ("Learning curves", learning_curves(plan, trials)),
        ("Leaderboard", board(plan, trials)),
        ("What failed", failures(trials)),
        ("Commands", commands(plan, trials)),
        ("The search", search_section(plan)),
    ]
    body = "".join(f"<section><h2>{html.escape(title)}</h2>{part}</section>" for title, part in sections if part)
    searched = ", ".join(axis.key for axis in plan.axes)
    summary = f"{plan.config.search.sampler} search of {searched}; experiment {plan.base.experiment}"
    return PAGE.format(
        name=html.escape(plan.name),
        style=SWEEP_STYLE,
        summary=html.escape(summary),
        figures=figures(plan, trials),
        body=body,
    )


def wide(chart: str) -> str:
    """A chart that scrolls on a small screen."""
    return f'<div class="wide">{chart}</div>' if chart else ""


def figures(plan: Plan, trials: Sequence[Trial]) -> str:
    """The headline figures."""
    best = best_trial(list(trials))
    cards = []
    if best is not None:
        cards.append((value_text(best.value, best.facts), f"best {plan.config.sweep.metric}", f"trial {best.number}"))
    done = sum(trial.finished for trial in trials)
    counts = [(state, sum(trial.state == state for trial in trials)) for state in (PRUNED, FAILED)]
    cards.append(
        (f"{done} of {plan.trials}", "trials", ", ".join(f"{count} {name}" for name, count in counts if count))
    )
    tokens = sum(trial.facts.get("tokens", 0) for trial in trials)
    seconds = sum(trial.facts.get("seconds", 0.0) for trial in trials)
    saved = saved_share(trials)
    note = f"pruning saved {saved:.0%}" if saved else ""
    cards.append((short_number(tokens), "tokens trained on", note))
    cards.append((duration(seconds), "of training", "all trials together"))
    speeds = [trial.facts["tokens_per_second"] for trial in trials if "tokens_per_second" in trial.facts]
    if speeds:
        cards.append((short_number(statistics.median(speeds)), "tokens per second", "the median trial"))
    return "".join(
        f"<div><b>{html.escape(value)}</b><span>{html.escape(label)}</span><small>{html.escape(small)}</small></div>"
        for value, label, small in cards
    )


def saved_share(trials: Sequence[Trial]) -> float:
    """Tokens that pruned trials did not train on, as a share of what all would have taken whole."""
    own = [trial for trial in trials if "same_as" not in trial.facts and "tokens" in trial.facts]
    whole = [trial.facts["tokens"] for trial in own if trial.state == COMPLETE]
    pruned = [trial.facts["tokens"] for trial in own if trial.state == PRUNED]
    if not whole or not pruned:
        return 0.0
    full = statistics.median(whole)
    return max(0.0, 1 - (sum(whole) + sum(pruned)) / (sum(whole) + full * len(pruned)))


def key_of_marks() -> str:
    """What the marks mean."""
    return (
        '<p class="legend key"><span><b class="s0">&#9679;</b> complete (blue: the best)</span>'
        "<span>&#9675; pruned, at its last value</span><span>&#215; failed</span><i>line: best so far</i></p>"
    )


def importance_section(plan: Plan, trials: Sequence[Trial]) -> str:
    """Bars, once there are trials enough."""
    shares = importances(plan.axes, trials)
    note = "How much of what sets the better trials apart lies in each setting (PED-ANOVA); complete trials only."
    return f'<p class="note">{note}</p>{bars(shares)}' if shares else ""


def scatters(plan: Plan, trials: Sequence[Trial]) -> str:
    """A small chart for each setting."""
    if not any(trial.value is not None for trial in trials):
        return ""
    charts = [
        f"<figure><figcaption>{html.escape(axis.key)}</figcaption>{scatter(axis, trials)}</figure>"
        for axis in plan.axes
    ]
    return f'<div class="small">{"".join(charts)}</div>'


def learning_curves(plan: Plan, trials: Sequence[Trial]) -> str:
    """The metric of all trials over tokens, from the rows of their runs."""
    metric, shade = plan.config.sweep.metric, shades(trials)
    lines, seen = [], []
    for trial in sorted(trials, key=lambda trial: -(trial.value if trial.value is not None else float("inf"))):
        if "same_as" in trial.facts:
            continue
        tokens, values = curve_of(run_of(plan, trial), metric)
        seen += values[len(values) // 8 :]
        if len(values) > 1:
            name = f"trial {trial.number}"
            lines.append(Line(name, tokens, values, f"learn {trial.state} {shade.get(trial.number, 's7')}"))
    if not lines:
        return ""
    seen.sort()
    low, high = seen[0], seen[int(0.97 * (len(seen) - 1))]
    room = 0.03 * (high - low) or 0.5
    chart = line_chart(
        lines, limits=(low - room, high + room), height=380, label=f"{metric} over tokens", show="{:.4g}".format
    )
    return f'<p class="legend"><i>{metric} over tokens; dashed: pruned</i></p>{chart}'


def curve_of(run: Path, metric: str) -> tuple[list[float], list[float]]:
    """Tokens and values of a run's validations; of many, some spread evenly."""
    file = run / "metrics.jsonl"
    try:
        state = file.stat()
    except OSError:
        return [], []
    return _curve_of(file, metric, (state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=4096)
def _curve_of(file: Path, metric: str, state: tuple[int, int]) -> tuple[list[float], list[float]]:
    """The page is drawn after every trial, and most runs are as they were."""
    rows = [row for row in read_rows(file) if number(row.get(metric)) is not None]
    rows = [row for row in rows if number(row.get("tokens")) is not None]
    every = -(-len(rows) // MAX_POINTS) or 1
    rows = [row for place, row in enumerate(rows) if place % every == 0 or place == len(rows) - 1]
    return [row["tokens"] for row in rows], [row[metric] for row in rows]


def board(plan: Plan, trials: Sequence[Trial]) -> str:
    """All trials, the best first."""
    keys = [axis.key for axis in plan.axes]
    heads = ["rank", "trial", plan.config.sweep.metric, *keys, "tok/s", "state"]
    rows = [f"<tr>{''.join(f'<th>{html.escape(head)}</th>' for head in heads)}</tr>"]
    for rank, trial in enumerate(ranked(list(trials)), start=1):
        speed = number(trial.facts.get("tokens_per_second"))
        state = trial.state + (f" (as trial {trial.facts['same_as']})" if "same_as" in trial.facts else "")
        cells = [
            str(rank) if trial.state == COMPLETE else "",
            str(trial.number),
            value_text(trial.value, trial.facts),
            *(text_of(trial.params[key]) for key in keys),
            short_number(speed) if speed else "",
            state,
        ]
        rows.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>")
    return f'<div class="wide board"><table>{"".join(rows)}</table></div>'


def failures(trials: Sequence[Trial]) -> str:
    """Cause and last lines of each failed trial."""
    parts = []
    for trial in trials:
        if trial.state == FAILED and "same_as" not in trial.facts:
            tail = html.escape("\n".join(trial.facts.get("tail", [])))
            cause = html.escape(str(trial.facts.get("cause", "")))
            parts.append(f"<details><summary>trial {trial.number}: {cause}</summary><pre>{tail}</pre></details>")
    return "".join(parts)


def commands(plan: Plan, trials: Sequence[Trial]) -> str:
    """What to type next."""
    found = []
    if best_trial(list(trials)) is not None:
        folder = shlex.quote(str(plan.folder / "best"))
        found.append(
            ("Train the best settings again", f"python scripts/train.py --config-dir {folder} experiment=best")
        )
    found.append(("Continue this sweep, or join it from another machine", plan.command_line))
    return "".join(f"<h3>{name}</h3><pre>{html.escape(redact(command))}</pre>" for name, command in found)


def search_section(plan: Plan) -> str:
    """What is searched, and how."""
    axes = {
        axis.key: ", ".join(map(text_of, axis.choices))
        or f"{axis.low:g} to {axis.high:g}"
        + (", log" if axis.log else "")
        + (f", step {axis.step:g}" if axis.step else "")
        for axis in plan.axes
    }
    search = plan.config.search
    how = {
        "sampler": search.sampler,
        "pruner": search.pruner,
        "seeds": plan.config.seeds,
        "sweep.seed": plan.config.sweep.seed,
    }
    return f'<div class="pair"><div>{table(axes)}</div><div>{table(how)}</div></div>'
