"""What a sweep tells: lines, leaderboard.csv, a picture, and the command that trains the best again."""

import csv
import io
import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from minigpt.config.convert import as_typed
from minigpt.files import replaced, write_file
from minigpt.invocation import typed
from minigpt.redact import redact_arguments
from minigpt.screen import duration, short_number, tell
from minigpt.sweep.settings import Sweep
from minigpt.sweep.space import overrides
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, run_dir, run_number

ORDER = (COMPLETE, PRUNED, RUNNING, FAILED)
SHOWN = 20  # rows of the table on the screen


def shown_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials by rank, without those that were tried again: complete ones by value, then the others."""
    latest = {run_number(trial): trial for trial in sorted(trials, key=lambda trial: trial.number)}
    return sorted(latest.values(), key=lambda trial: (ORDER.index(trial.state), trial.value or 0.0, run_number(trial)))


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the complete trial with the lowest value (of equal ones the first), or None if no trial is complete."""
    first = next(iter(shown_trials(trials)), None)
    return first if first is not None and first.state == COMPLETE else None


def state_of(trial: FrozenTrial) -> str:
    """Return the state in a word: complete, pruned, running or failed."""
    return "failed" if trial.state == FAILED else trial.state.name.lower()


def standard_error(trial: FrozenTrial) -> float | None:
    """Return the standard error of the mean over the trial's seeds; None for fewer than two."""
    values = trial.user_attrs.get("values", [])
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def value_text(trial: FrozenTrial) -> str:
    """Return a trial's value, with its standard error if there are several seeds."""
    error = standard_error(trial)
    return "" if trial.value is None else f"{trial.value:.4f}" + ("" if error is None else f" +- {error:.4f}")


def news_of(trial: FrozenTrial, sweep: Sweep, seconds: float | None = None) -> str:
    """Return the line about a finished trial."""
    what = f"{sweep.config.sweep.metric} {value_text(trial)}"
    if trial.state == FAILED:
        what = f"FAILED: {trial.user_attrs.get('cause', 'unknown cause')}"
    elif trial.state == PRUNED:
        what = f"pruned, {what}"
    line = f"trial {run_number(trial)}: {what}  {' '.join(overrides(trial.params))}"
    if "same_as" in trial.user_attrs:
        return f"{line} (the same settings as trial {trial.user_attrs['same_as']})"
    return line if seconds is None else f"{line}, {duration(seconds)}"


def table(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[str]:
    """Return the lines of the table: the best trials first."""
    last = [key.rpartition(".")[2] for key in sweep.space]  # short names, if no other setting has the same
    names = [short if last.count(short) == 1 else key for key, short in zip(sweep.space, last, strict=True)]
    rows = [["rank", "trial", sweep.config.sweep.metric, *names, "state"]]
    current = shown_trials(trials)
    for rank, trial in enumerate(current[:SHOWN], 1):
        state = state_of(trial)
        if trial.state == PRUNED and trial.intermediate_values:
            state = f"pruned at {short_number(max(trial.intermediate_values))} tokens"
        elif trial.state == FAILED:
            state = f"failed: {trial.user_attrs.get('cause', '')}"
        point = [as_typed(trial.params.get(key, "")) for key in sweep.space]
        rank_text = str(rank) if trial.state == COMPLETE else ""
        rows.append([rank_text, str(run_number(trial)), value_text(trial), *point, state])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in rows]
    if len(current) > SHOWN:
        lines.append(f"... and {len(current) - SHOWN} more in {sweep.folder / 'leaderboard.csv'}")
    done = sum(trial.state.is_finished() for trial in current)
    counts = [f"{n} {word}" for word in ("pruned", "failed") if (n := sum(state_of(t) == word for t in current))]
    return [*lines, ", ".join([f"{done} of {sweep.trials} trials", *counts])]


def write_leaderboard(sweep: Sweep, trials: Sequence[FrozenTrial]) -> None:
    """Write leaderboard.csv anew; run.dir is that of a trial's best seed."""
    text = io.StringIO()
    error = ["standard_error"] if sweep.config.seeds > 1 else []
    writer = csv.DictWriter(text, ["rank", "value", *error, "state", *sweep.space, "run.dir"], lineterminator="\n")
    writer.writeheader()
    for rank, trial in enumerate(shown_trials(trials), 1):
        values = trial.user_attrs.get("values", [])
        row = {"rank": rank if trial.state == COMPLETE else None, "value": trial.value, "state": state_of(trial)}
        row |= {"standard_error": standard_error(trial)} if error else {}
        row |= {key: as_typed(trial.params[key]) for key in sweep.space if key in trial.params}
        row["run.dir"] = str(run_dir(sweep, trial, values.index(min(values)) if values else 0))
        writer.writerow(row)
    write_file(sweep.folder / "leaderboard.csv", text.getvalue())


def rerun_command(sweep: Sweep, best: FrozenTrial) -> str:
    """Return the command that trains a trial's settings again."""
    return f"{typed('train')} {shlex.join(redact_arguments([*sweep.shared, *overrides(best.params)]))}"


def draw_picture(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Path | None:
    """Draw sweep.png, values over the trials and over each setting; return its path, None if there is none."""
    complete = sorted((trial for trial in trials if trial.state == COMPLETE), key=lambda trial: trial.number)
    if not complete:
        return None
    import matplotlib  # here, not above: it takes a second

    matplotlib.use("agg")
    from matplotlib import pyplot

    keys = ["trial", *sweep.space]
    columns = min(len(keys), 3)
    rows = math.ceil(len(keys) / columns)
    size = (4.2 * columns, 3.2 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    values = [trial.value or 0.0 for trial in complete]
    for axes, key in zip(grid.flat, keys, strict=False):
        numbers = [run_number(trial) for trial in complete]
        distribution = sweep.space.get(key)
        places = numbers if key == "trial" else [trial.params[key] for trial in complete]
        if isinstance(distribution, CategoricalDistribution):
            choices = list(map(as_typed, distribution.choices))
            places = [choices.index(as_typed(place)) for place in places]
            axes.set_xticks(range(len(choices)), choices)
        elif getattr(distribution, "log", False):
            axes.set_xscale("log")
        axes.scatter(places, values, c=numbers, cmap="Blues", vmin=-len(trials) / 2, edgecolors="#456", linewidths=0.5)
        axes.set(xlabel=key, ylabel=sweep.config.sweep.metric)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(keys) :]:
        axes.remove()
    path = sweep.folder / "sweep.png"
    try:
        with replaced(path) as temporary:
            figure.savefig(temporary, format="png", dpi=120)
    except Exception as error:  # a failed picture must not end the sweep
        tell(f"{path} could not be drawn: {type(error).__name__}: {error}")
        return None
    finally:
        pyplot.close(figure)
    return path
