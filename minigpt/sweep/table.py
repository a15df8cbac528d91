"""The table of trials on the screen: redrawn in place in a terminal, a line for each piece of news anywhere else."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.report.record import number
from minigpt.report.words import duration, short_number
from minigpt.sweep.settings import Plan, steps_of
from minigpt.sweep.space import text_of
from minigpt.sweep.trial import COMPLETE, PRUNED, RUNNING, Trial, ranked, standard_error
from minigpt.sweep.trial_runner import Attempt

REDRAW_SECONDS = 0.5
STATE_WIDTH = 24  # of a long state, so much is worth more than another setting


class Table:
    """Shows a sweep while it runs. A screen that is gone is no matter.

    Args:
        plan: of the sweep.
        stream: default stdout.
    """

    def __init__(self, plan: Plan, stream: Any = None):
        self.plan = plan
        self.stream = stream or sys.stdout
        self.in_place = bool(self.stream.isatty())
        self.drawn = 0  # lines of the table that stand on the screen
        self.drawn_at = 0.0
        self.began = time.monotonic()
        self.done_before = 0  # trials that had a result when this worker began

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        self._write(self._clear() + text + "\n")
        self.drawn_at = 0.0

    def is_due(self) -> bool:
        """Whether there is a terminal, and it is time to redraw."""
        return self.in_place and time.monotonic() > self.drawn_at + REDRAW_SECONDS

    def show(self, trials: Sequence[Trial], attempts: Sequence[Attempt]) -> None:
        """Redraw in place, as wide as the terminal is."""
        size = shutil.get_terminal_size()
        lines = self.lines(trials, attempts, rows=max(4, size.lines - 4), width=size.columns - 1)
        lines = [line[: size.columns - 1] for line in lines]
        self._write(self._clear() + "".join(line + "\n" for line in lines))
        self.drawn, self.drawn_at = len(lines), time.monotonic()

    def close(self, trials: Sequence[Trial]) -> None:
        """The table as it stays, wherever it is shown."""
        lines = self.lines(trials, [], rows=20)
        self._write(self._clear() + "".join(line + "\n" for line in lines))
        self.drawn = 0

    def lines(
        self, trials: Sequence[Trial], attempts: Sequence[Attempt], *, rows: int, width: int = 10_000
    ) -> list[str]:
        """The table: running trials first, then the others by rank. What it has no room for are settings."""
        here = {attempt.trial.number: attempt for attempt in attempts}
        order = ranked(list(trials))
        ranks = {trial.number: rank for rank, trial in enumerate(order, start=1) if trial.state == COMPLETE}
        shown = [trial for trial in order if trial.state == RUNNING] + [trial for trial in order if trial.finished]
        keys = [axis.key for axis in self.plan.axes]
        heads = ["rank", "trial", self.plan.config.sweep.metric, *short_names(keys), "tok/s", "state"]
        cells = [heads]
        for trial in shown[:rows]:
            cells.append(self.cells(trial, ranks.get(trial.number), here.get(trial.number)))
        widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
        while len(heads) > 5 and sum(widths[:-1]) + 2 * len(widths) + min(widths[-1], STATE_WIDTH) > width:
            del widths[-3]  # the last setting
            for row in cells:
                del row[-3]
        lines = [
            "  ".join(
                cell.ljust(width) if place == len(heads) - 1 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        more = len(shown) - rows
        return [*lines, *([f"... and {more} more in {self.plan.folder / 'leaderboard.csv'}"] if more > 0 else []),
                self.footer(trials)]  # fmt: skip

    def cells(self, trial: Trial, rank: int | None, attempt: Attempt | None) -> list[str]:
        """One trial."""
        params = [text_of(trial.params[axis.key]) for axis in self.plan.axes]
        speed = number(trial.facts.get("tokens_per_second"))
        state, value = trial.state, trial.value
        if attempt is not None:
            speed, value, state = now(attempt, self.plan)
        elif trial.state == RUNNING:
            state = "running elsewhere, or waiting"
        elif "cause" in trial.facts:
            state = f"failed: {trial.facts['cause']}"
        elif trial.state == PRUNED:
            state = f"pruned at {short_number(max(trial.curve, default=0))} tokens" if trial.curve else "pruned"
        if "same_as" in trial.facts:
            state += f" (as trial {trial.facts['same_as']})"
        return [
            str(rank or ""),
            str(trial.number),
            value_text(value, trial.facts),
            *params,
            short_number(speed) if speed else "",
            state,
        ]

    def footer(self, trials: Sequence[Trial]) -> str:
        """How far the sweep is."""
        done = sum(trial.finished for trial in trials)
        parts = [f"{done} of {self.plan.trials} trials"]
        for state in (PRUNED, "failed"):
            count = sum(trial.state == state for trial in trials)
            parts += [f"{count} {state}"] if count else []
        new = done - self.done_before
        left = self.plan.trials - done
        if new > 0 and left > 0:
            parts.append(f"ETA {duration((time.monotonic() - self.began) / new * left)}")
        return ", ".join(parts)

    def _clear(self) -> str:
        text = f"\x1b[{self.drawn}A\x1b[J" if self.drawn else ""
        self.drawn = 0
        return text

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.in_place = False


def short_names(keys: Sequence[str]) -> list[str]:
    """The last part of each name, where no other ends alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return [short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)]


def value_text(value: float | None, facts: Mapping[str, Any]) -> str:
    """A value as the table shows it: with its standard error, where there are several seeds."""
    if value is None:
        return ""
    error = standard_error(facts.get("values", []))
    return f"{value:.4f}" + (f" +- {error:.4f}" if error is not None else "")


def now(attempt: Attempt, plan: Plan) -> tuple[float | None, float | None, str]:
    """Speed, best value so far and progress of a trial that runs here."""
    rows = attempt.rows.rows
    values = [row[plan.config.sweep.metric] for row in rows if number(row.get(plan.config.sweep.metric)) is not None]
    step = int(number(rows[-1].get("step")) or 0) if rows else 0
    total = steps_of(plan.base)
    state = "stopping" if attempt.pruned or attempt.stopping else f"step {step:,}" if rows else "starting"
    if rows and total and not (attempt.pruned or attempt.stopping):
        state += f"/{total:,}"
    if plan.config.seeds > 1:
        state += f", seed {min(len(attempt.values) + 1, plan.config.seeds)} of {plan.config.seeds}"
    speed = number(rows[-1].get("tokens_per_second")) if rows else None
    return speed, min(values, default=None), state


def news_of(trial: Trial, plan: Plan) -> str:
    """A finished trial in a line."""
    settings = " ".join(f"{key}={text_of(value)}" for key, value in trial.params.items())
    what = {
        COMPLETE: f"{plan.config.sweep.metric} {value_text(trial.value, trial.facts)}",
        PRUNED: f"pruned, {plan.config.sweep.metric} {value_text(trial.value, {})}",
    }.get(trial.state, f"FAILED: {trial.facts.get('cause', 'no cause known')}")
    same = f" (the same settings as trial {trial.facts['same_as']})" if "same_as" in trial.facts else ""
    seconds = trial.facts.get("seconds")
    took = f", {duration(seconds)}" if seconds and not same else ""
    return f"trial {trial.number}: {what}  {settings}{took}{same}"
