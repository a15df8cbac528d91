"""The results of a sweep: lines, leaderboard.csv, a picture, and the command that trains the best again."""

import csv
import io
import math
import shlex
import statistics
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from optuna import create_study
from optuna.trial import FrozenTrial

from minigpt.config.convert import as_typed
from minigpt.config.schema import CONVERSATIONS
from minigpt.files import replaced, write_file
from minigpt.invocation import typed
from minigpt.redact import redact_arguments
from minigpt.screen import duration, number_of, table
from minigpt.sweep.settings import Sweep
from minigpt.sweep.space import overrides
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, run_dir, run_number

STATES = {COMPLETE: "complete", PRUNED: "pruned", RUNNING: "unfinished", FAILED: "failed"}  # in the leaderboard's order
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
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(leaderboard(sweep, trials))
    write_file(sweep.folder / "leaderboard.csv", text.getvalue())


def summary(sweep: Sweep, trials: Sequence[FrozenTrial]) -> str:
    """Return the top of the leaderboard as a table, and how many trials there are of each state."""
    rows = leaderboard(sweep, trials)
    figures = rows[0].index("state")  # the columns before it, the rank aside
    for row in rows[1:]:
        row[1:figures] = [f"{float(figure):.4f}" if figure else "" for figure in row[1:figures]]
    states = [STATES[trial.state] for trial in shown_trials(trials)]
    counts = [f"{len(states) - states.count('unfinished')} of {number_of(sweep.trials, 'trial')}"]
    counts += [f"{states.count(state)} {state}" for state in ("pruned", "failed") if state in states]
    return f"{table(rows[: SHOWN + 1])}\n{', '.join(counts)}"


def winner(sweep: Sweep, trials: Sequence[FrozenTrial]) -> str:
    """Name the best trial and the next, and the commands that tell how sure this is and that train the best again."""
    ranked = [trial for trial in shown_trials(trials) if trial.state == COMPLETE]
    if not ranked:
        return ""
    words = overrides(ranked[0].params)
    line = f"Best       {' '.join(words)}: {sweep.config.sweep.metric} {ranked[0].value:.4f}"
    sides = defaultdict[str, list[FrozenTrial]](list)  # trials that differ by their seeds alone
    for trial in ranked:
        sides[str(sorted(item for item in trial.params.items() if item[0] != "seed"))].append(trial)
    if len(sides) > 1 and sweep.config.data.name not in CONVERSATIONS:  # which compare does not take
        pair, seeds = [*sides.values()][:2], range(sweep.config.seeds)
        first, second = ([str(run_dir(sweep, trial, n)) for trial in side for n in seeds] for side in pair)
        runs = shlex.join([*first, *(["vs"] if len(first + second) > 2 else []), *second])
        line += f"; the next settings have {pair[1][0].value:.4f}. Is that sure?\n  {typed('compare')} {runs}"
    # A grid's training has the run's own name, so that this one needs another.
    words += [f"run.dir={run_dir(sweep, ranked[0], 0)}-again"] if sweep.runs else []
    return f"{line}\nTrain the best again:\n  {typed('train')} {shlex.join(redact_arguments([*sweep.shared, *words]))}"


def draw_picture(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Path | None:
    """Draw sweep.png, Optuna's slices: complete trials over each searched setting; return its path, None without."""
    complete = sorted((trial for trial in shown_trials(trials) if trial.state == COMPLETE), key=run_number)
    if not complete or not sweep.space:
        return None
    import matplotlib as mpl  # here: it takes half a second
    from optuna.visualization.matplotlib import plot_slice

    path, study = sweep.folder / "sweep.png", create_study()
    study.add_trials(complete)
    with mpl.rc_context({"backend": "agg"}), warnings.catch_warnings(action="ignore"):
        slices: Any = plot_slice(study, params=[*sweep.space], target_name=sweep.config.sweep.metric)
        chart = np.ravel(slices)[0]
        low, usual, high = np.quantile([trial.value or 0.0 for trial in complete], [0, 0.85, 1])
        if high > (top := usual + 0.5 * (usual - low)):  # trials that diverged: above the picture
            chart.set_ylim(low - 0.05 * (top - low), top)
        chart.figure.suptitle(sweep.folder.name)
        with replaced(path) as temporary:
            chart.figure.savefig(temporary, format="png", dpi=130, metadata={"Software": None})
    return path
