"""The results of a sweep: lines, leaderboard.csv, a picture, and the command that trains the best again."""

import csv
import io
import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial

from minigpt.config.convert import as_typed
from minigpt.files import replaced, write_file
from minigpt.invocation import typed
from minigpt.redact import redact_arguments
from minigpt.report.curves import RATE, TRAIN, VALIDATION, drawing, plain
from minigpt.screen import duration, number_of, table
from minigpt.sweep.settings import Sweep
from minigpt.sweep.space import Distribution, listed, overrides
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, run_dir, run_number

STATES = {COMPLETE: "complete", PRUNED: "pruned", RUNNING: "running", FAILED: "failed"}  # in the leaderboard's order
MARKS: dict[str, dict[str, Any]] = {  # in the picture
    "best": {"marker": "*", "s": 150, "color": VALIDATION},
    "complete": {"marker": "o", "s": 34, "color": TRAIN, "label": "complete (stronger: later)"},
    "pruned": {"marker": "o", "s": 30, "facecolors": "none", "edgecolors": RATE},
    "failed": {"marker": "x", "s": 34, "color": RATE},
    "above the picture": {"marker": "^", "s": 34, "color": RATE},
}
MOST_CHOICES = 12  # that get a place of their own in the picture
SHOWN = 20  # rows of the table on the screen


def shown_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials by rank, without those that were tried again: complete ones by value, then the others."""
    latest = {run_number(trial): trial for trial in sorted(trials, key=lambda trial: trial.number)}
    order = [*STATES]
    return sorted(latest.values(), key=lambda trial: (order.index(trial.state), trial.value or 0.0, run_number(trial)))


def standard_error(trial: FrozenTrial) -> float | None:
    """Return the standard error of the mean over the trial's seeds; None for fewer than two."""
    values = trial.user_attrs.get("values", [])
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def news_of(trial: FrozenTrial, sweep: Sweep, seconds: float) -> str:
    """Return the line about a finished trial."""
    what = f"{sweep.config.sweep.metric} {trial.value:.4f}" if trial.value is not None else ""
    if trial.state != COMPLETE:
        what = f"{STATES[trial.state].upper()} {trial.user_attrs.get('cause', what)}"
    return f"trial {run_number(trial)}: {what}  {' '.join(overrides(trial.params))}, {duration(seconds)}"


def leaderboard(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[list[str]]:
    """Return the rows of leaderboard.csv, its head first; run.dir is that of a trial's best seed."""
    several = sweep.config.seeds > 1
    rows = [["rank", "value", *(["standard_error"] if several else []), "state", *sweep.space, "run.dir"]]
    for rank, trial in enumerate(shown_trials(trials), 1):
        values, error = trial.user_attrs.get("values", []), standard_error(trial)
        row = [str(rank) if trial.state == COMPLETE else "", "" if trial.value is None else repr(trial.value)]
        row += ["" if error is None else repr(error)] if several else []
        row += [STATES[trial.state], *(as_typed(trial.params[key]) for key in sweep.space)]
        rows.append([*row, str(run_dir(sweep, trial, values.index(min(values)) if values else 0))])
    return rows


def write_leaderboard(sweep: Sweep, trials: Sequence[FrozenTrial]) -> None:
    """Write leaderboard.csv anew."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(leaderboard(sweep, trials))
    write_file(sweep.folder / "leaderboard.csv", text.getvalue())


def summary(sweep: Sweep, trials: Sequence[FrozenTrial]) -> str:
    """Return the top of the leaderboard as a table, and how many trials there are of each state."""
    rows = leaderboard(sweep, trials)
    for row in rows[1:]:
        row[1:2] = [f"{float(row[1]):.4f}" if row[1] else ""]
    states = [STATES[trial.state] for trial in shown_trials(trials)]
    counts = [f"{len(states) - states.count('running')} of {number_of(sweep.trials, 'trial')}"]
    counts += [f"{states.count(state)} {state}" for state in ("pruned", "failed") if state in states]
    return f"{table(rows[: SHOWN + 1])}\n{', '.join(counts)}"


def winner(sweep: Sweep, trials: Sequence[FrozenTrial]) -> str:
    """Name the best trial and the next, and the commands that tell how sure this is and that train the best again."""
    ranked = [trial for trial in shown_trials(trials) if trial.state == COMPLETE]
    if not ranked:
        return ""
    words = overrides(ranked[0].params)
    line = f"Best       {' '.join(words)}: {sweep.config.sweep.metric} {ranked[0].value:.4f}"
    if len(ranked) > 1:
        first, second = ([str(run_dir(sweep, t, place)) for place in range(sweep.config.seeds)] for t in ranked[:2])
        sides = shlex.join([*first, *(["vs"] if len(first) > 1 else []), *second])
        line += f"; the next has {ranked[1].value:.4f}. Is that sure?\n  {typed('compare')} {sides}"
    # A grid's training has the run's own name, so that this one needs another.
    words += [f"run.dir={run_dir(sweep, ranked[0], 0)}-again"] if sweep.runs else []
    return f"{line}\nTrain the best again:\n  {typed('train')} {shlex.join(redact_arguments([*sweep.shared, *words]))}"


def draw_picture(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Path | None:
    """Draw sweep.png, every trial over each searched setting; return its path, None if there is none."""
    shown, settings = shown_trials(trials), list(sweep.space)
    if not settings or not any(trial.state == COMPLETE for trial in shown):
        return None
    path, columns = sweep.folder / "sweep.png", 2 if len(settings) == 4 else min(3, len(settings))
    rows = math.ceil(len(settings) / columns)
    size = (max(3.4 * columns, 6.0), 2.8 * rows + 0.6)
    with drawing(size=size, font_size=10, dpi=130) as figure, replaced(path) as temporary:
        charts = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
        for chart, key in zip(charts, settings, strict=False):
            draw_setting(chart, key, sweep.space[key], shown)
        for chart in charts[len(settings) :]:
            chart.set_visible(False)
        for chart in charts[::columns]:
            chart.set_ylabel(sweep.config.sweep.metric)
        look: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "alignment": "left"}
        title = {"title": sweep.folder.name, "title_fontproperties": {"weight": "bold", "size": 12}}
        figure.legend(*charts[0].get_legend_handles_labels(), ncols=4 if columns > 1 else 2, **look, **title)
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return path


def draw_setting(chart: Any, key: str, kind: Distribution, shown: Sequence[FrozenTrial]) -> None:
    """Draw all trials over one setting; those that failed or are far above the others are on the top edge."""
    values = [trial.value for trial in shown if trial.value is not None]
    low, usual = min(values), float(np.percentile(values, 85))
    top = usual + (0.4 * (usual - low) or 0.02 * abs(low) or 1.0)
    choices = [as_typed(choice) for choice in listed(kind) or ()] if len(listed(kind) or ()) <= MOST_CHOICES else []
    marks: dict[str, list[tuple[float, float, float]]] = {name: [] for name in MARKS}  # place, value, strength
    for late, trial in zip(np.linspace(0, 1, len(shown)), sorted(shown, key=run_number), strict=True):
        if trial.state == RUNNING or key not in trial.params:
            continue
        place, value, name = trial.params[key], trial.value, STATES[trial.state]
        if choices:  # later trials further right, so that none hides another
            place = choices.index(as_typed(place)) + (late - 0.5) / 2
        if value is None or value > top:
            value, name = top, name if name == "failed" else "above the picture"
        elif (error := standard_error(trial)) is not None:
            chart.errorbar(place, value, yerr=error, color=TRAIN, alpha=0.5, linewidth=1)
        marks["best" if trial is shown[0] else name].append((place, value, 0.35 + 0.65 * late))
    for name, points in marks.items():
        if points:
            x, y, strength = zip(*points, strict=True)
            look = {"label": name, "alpha": strength if name == "complete" else None, **MARKS[name]}
            chart.scatter(x, y, zorder=3, clip_on=False, **look)
    plain(chart)
    chart.set_ylim(low - 0.15 * (top - low), top + 0.08 * (top - low))
    chart.set_xlabel(key)
    if choices:
        chart.set_xticks(range(len(choices)), choices, rotation=20 if sum(map(len, choices)) > 24 else 0)
        chart.set_xlim(-0.5, len(choices) - 0.5)
    elif getattr(kind, "log", False):
        chart.set_xscale("log")
        ticks = np.geomspace(kind.low, kind.high, 3)  # type: ignore[union-attr]
        chart.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        chart.set_xticks([], minor=True)
    else:
        chart.locator_params(axis="x", nbins=4, integer=isinstance(kind, IntDistribution))
