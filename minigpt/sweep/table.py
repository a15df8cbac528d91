"""The table of trials on the screen: redrawn in place in a terminal, elsewhere one line for each finished trial."""

import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from minigpt.config.convert import as_typed
from minigpt.report.number_format import duration, short_number
from minigpt.report.record import number
from minigpt.sweep.locks import is_alive, owner
from minigpt.sweep.settings import Sweep, overrides
from minigpt.sweep.trial_runner import TrialRunner
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial, is_finished, ranked, standard_error, state_of

REDRAW_SECONDS = 0.5
STATE_WIDTH = 24  # of a long state, so many characters are worth more than another setting


class Table:
    """Shows a sweep while it runs. A screen that is gone does no harm.

    Args:
        sweep: to show.
        stream: default stdout.
    """

    def __init__(self, sweep: Sweep, stream: Any = None):
        self.sweep = sweep
        self.stream = stream or sys.stdout
        self.in_place = bool(self.stream.isatty())
        self.drawn = 0  # lines of the table on the screen
        self.drawn_at = 0.0
        self.began = time.monotonic()
        self.done_before = 0  # trials that had a result when this worker began

    def say(self, text: str) -> None:
        """Print a line that stays, above the table."""
        self._write(text + "\n")
        self.drawn_at = 0.0

    def is_due(self) -> bool:
        """Return whether there is a terminal, and it is time to redraw."""
        return self.in_place and time.monotonic() > self.drawn_at + REDRAW_SECONDS

    def show(self, trials: Sequence[Trial], runners: Sequence[TrialRunner]) -> None:
        """Redraw in place, as wide as the terminal is."""
        size = shutil.get_terminal_size()
        lines = self.lines(trials, runners, rows=max(4, size.lines - 4), width=size.columns - 1)
        self._write("".join(line[: size.columns - 1] + "\n" for line in lines))
        self.drawn, self.drawn_at = len(lines), time.monotonic()

    def close(self, trials: Sequence[Trial]) -> None:
        """Print the final table."""
        self._write("".join(line + "\n" for line in self.lines(trials, [], rows=20)))

    def lines(
        self, trials: Sequence[Trial], runners: Sequence[TrialRunner], *, rows: int, width: int = 10_000
    ) -> list[str]:
        """Return the table's lines: running trials, then the others by rank. Settings give way where room is short."""
        here = {runner.trial.number: runner for runner in runners}
        order = ranked(trials)
        ranks = {trial.number: rank for rank, trial in enumerate(order, start=1) if trial.state == COMPLETE}
        order.sort(key=is_finished)
        last = [key.rpartition(".")[2] for key in self.sweep.space]  # short names, where no other setting ends alike
        names = [short if last.count(short) == 1 else key for key, short in zip(self.sweep.space, last, strict=True)]
        cells = [["rank", "trial", self.sweep.config.sweep.metric, *names, "tok/s", "state"]]
        for trial in order[:rows]:
            cells.append(row_of(self.sweep, trial, ranks.get(trial.number), here.get(trial.number)))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        while len(widths) > 5 and sum(widths[:-1]) + 2 * len(widths) + min(widths[-1], STATE_WIDTH) > width:
            del widths[-3]  # the last setting
            for row in cells:
                del row[-3]
        lines = []
        for row in cells:
            aligned = [cell.rjust(each) for cell, each in zip(row[:-1], widths, strict=False)]
            lines.append("  ".join([*aligned, row[-1]]))
        more = len(order) - rows
        if more > 0:
            lines.append(f"... and {more} more in {self.sweep.folder / 'leaderboard.csv'}")
        return [*lines, self.footer(trials)]

    def footer(self, trials: Sequence[Trial]) -> str:
        """Return a line that says how far the sweep is."""
        done = sum(is_finished(trial) for trial in trials)
        parts = [f"{done} of {self.sweep.trials} trials"]
        counts = Counter(map(state_of, trials))
        parts += [f"{counts[state]} {state}" for state in ("pruned", "failed") if counts[state]]
        new, left = done - self.done_before, self.sweep.trials - done
        if new > 0 and left > 0:
            parts.append(f"ETA {duration((time.monotonic() - self.began) / new * left)}")
        return ", ".join(parts)

    def _write(self, text: str) -> None:
        """Write where the table stood."""
        erase = f"\x1b[{self.drawn}A\x1b[J" if self.drawn else ""
        self.drawn = 0
        try:
            self.stream.write(erase + text)
            self.stream.flush()
        except (OSError, ValueError):
            self.in_place = False


def row_of(sweep: Sweep, trial: Trial, rank: int | None, runner: TrialRunner | None = None) -> list[str]:
    """Return a trial's cells: rank, number, value, settings, speed, state."""
    facts, value, state = trial.user_attrs, trial.value, state_of(trial)
    speed = number(facts.get("tokens_per_second"))
    if runner is not None:
        speed, value, state = progress(runner, sweep)
    elif not is_finished(trial):
        machine, process = owner(sweep.lock_of(trial.number))
        gone = machine in ("", platform.node()) and not (process and is_alive(process))
        state = "stopped, goes on with the sweep" if gone else f"running on {machine}, process {process}"
    elif "cause" in facts:
        state = f"failed: {facts['cause']}"
    elif trial.state == PRUNED and trial.intermediate_values:
        state = f"pruned at {short_number(max(trial.intermediate_values))} tokens"
    if not sweep.peak_is_reached(trial.params):
        state += ", its warm-up ends after the run: the peak rate was never reached"
    if "same_as" in facts:
        state += f" (as trial {facts['same_as']})"
    settings = [as_typed(trial.params[key]) for key in sweep.space]
    return [str(rank or ""), str(trial.number), value_text(trial, value), *settings,
            short_number(speed) if speed else "", state]  # fmt: skip


def value_text(trial: Trial, value: float | None) -> str:
    """Return a value as the table shows it: with its standard error, where there are several seeds."""
    if value is None:
        return ""
    error = standard_error(trial)
    return f"{value:.4f}" + (f" +- {error:.4f}" if error is not None else "")


def progress(runner: TrialRunner, sweep: Sweep) -> tuple[float | None, float | None, str]:
    """Return speed, best value so far and the state of a trial that runs here."""
    rows, seeds, total = runner.rows.rows, sweep.config.seeds, sweep.steps_of(runner.trial.params)
    values = [value for row in rows if (value := number(row.get(sweep.config.sweep.metric))) is not None]
    last = rows[-1] if rows else {}
    state = (
        "starting" if not rows else f"step {int(number(last.get('step')) or 0):,}" + (f"/{total:,}" if total else "")
    )
    if runner.pruned is not None or runner.stopping:
        state = "stopping"
    if seeds > 1:
        state += f", seed {min(len(runner.values) + 1, seeds)} of {seeds}"
    return number(last.get("tokens_per_second")), min(values, default=None), state


def news_of(trial: Trial, sweep: Sweep) -> str:
    """Return the line that tells of a finished trial."""
    facts, what = trial.user_attrs, f"{sweep.config.sweep.metric} {value_text(trial, trial.value)}"
    if trial.state == FAILED:
        what = f"FAILED: {facts['cause']}"
    pruned = "pruned, " if trial.state == PRUNED else ""
    line = f"trial {trial.number}: {pruned}{what}  {' '.join(overrides(trial.params))}"
    if "same_as" in facts:
        return f"{line} (the same settings as trial {facts['same_as']})"
    return line + (f", {duration(facts['seconds'])}" if "seconds" in facts else "")
