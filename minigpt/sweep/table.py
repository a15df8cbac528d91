"""The table of trials: on the page, and on the screen, where it is redrawn in place if that is a terminal."""

import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
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


def rows_of(
    sweep: Sweep, trials: Sequence[Trial], runners: Sequence[TrialRunner] = (), *, most: int | None = None
) -> list[list[str]]:
    """Return the table's cells, its head first: running trials, then the others by rank, `most` of them."""
    last = [key.rpartition(".")[2] for key in sweep.space]  # short names, where no other setting ends alike
    names = [short if last.count(short) == 1 else key for key, short in zip(sweep.space, last, strict=True)]
    rows = [["rank", "trial", sweep.config.sweep.metric, *names, "tok/s", "state"]]
    here = {runner.trial.number: runner for runner in runners}
    order = ranked(trials)
    ranks = {trial.number: str(rank) for rank, trial in enumerate(order, start=1) if trial.state == COMPLETE}
    for trial in sorted(order, key=is_finished)[:most]:
        speed = number(trial.user_attrs.get("tokens_per_second"))
        value, state = trial.value, state_in_words(sweep, trial)
        if trial.number in here:
            speed, value, state = progress(sweep, here[trial.number])
        if not sweep.peak_is_reached(trial.params):
            state += ", its warm-up ends after the run: the peak rate was never reached"
        typed = [as_typed(trial.params[key]) for key in sweep.space]
        speed_text = short_number(speed) if speed else ""
        rank, number_text = ranks.get(trial.number, ""), str(trial.number)
        rows.append([rank, number_text, value_text(trial, value), *typed, speed_text, state])
    return rows


def state_in_words(sweep: Sweep, trial: Trial) -> str:
    """Say what became of a trial, or who runs it."""
    facts, state = trial.user_attrs, state_of(trial)
    if not is_finished(trial):
        machine, process = owner(sweep.lock_of(trial.number))
        gone = machine in ("", platform.node()) and not (process and is_alive(process))
        state = "stopped, goes on with the sweep" if gone else f"running on {machine}, process {process}"
    elif "cause" in facts:
        state = f"failed: {facts['cause']}"
    elif trial.state == PRUNED and trial.intermediate_values:
        state = f"pruned at {short_number(max(trial.intermediate_values))} tokens"
    return state + (f" (as trial {facts['same_as']})" if "same_as" in facts else "")


def progress(sweep: Sweep, runner: TrialRunner) -> tuple[float | None, float | None, str]:
    """Return speed, best value so far and the state of a trial that runs here."""
    rows, seeds, total = runner.rows.rows, sweep.config.seeds, sweep.steps_of(runner.trial.params)
    values = [value for row in rows if (value := number(row.get(sweep.config.sweep.metric))) is not None]
    last = rows[-1] if rows else {}
    state = f"step {int(number(last.get('step')) or 0):,}" + (f"/{total:,}" if total else "")
    if runner.pruned is not None or runner.stopping:
        state = "stopping"
    if seeds > 1:
        state += f", seed {min(len(runner.values) + 1, seeds)} of {seeds}"
    return number(last.get("tokens_per_second")), min(values, default=None), state


def value_text(trial: Trial, value: float | None) -> str:
    """Return a value as the table shows it: with its standard error, where there are several seeds."""
    error = standard_error(trial)
    return "" if value is None else f"{value:.4f}" + ("" if error is None else f" +- {error:.4f}")


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


@dataclass(eq=False)
class Table:
    """Shows a sweep while it runs."""

    sweep: Sweep
    stream: Any = field(default_factory=lambda: sys.stdout)
    drawn: int = 0  # lines of the table on the screen
    drawn_at: float = 0.0
    began: float = field(default_factory=time.monotonic)
    done_before: int = 0  # trials that had a result when this worker began

    def say(self, text: str) -> None:
        """Print a line that stays, above the table."""
        erase = f"\x1b[{self.drawn}A\x1b[J" if self.drawn else ""
        print(f"{erase}{text}", file=self.stream, flush=True)
        self.drawn, self.drawn_at = 0, 0.0

    def is_due(self) -> bool:
        """Return whether there is a terminal, and it is time to redraw."""
        return self.stream.isatty() and time.monotonic() > self.drawn_at + REDRAW_SECONDS

    def show(self, trials: Sequence[Trial], runners: Sequence[TrialRunner]) -> None:
        """Redraw in place, as wide as the terminal is."""
        size = shutil.get_terminal_size()
        lines = self.lines(trials, runners, rows=max(4, size.lines - 4), width=size.columns - 1)
        self.say("\n".join(line[: size.columns - 1] for line in lines))
        self.drawn, self.drawn_at = len(lines), time.monotonic()

    def lines(
        self, trials: Sequence[Trial], runners: Sequence[TrialRunner] = (), *, rows: int, width: int = 10_000
    ) -> list[str]:
        """Return the table's lines. Settings give way where room is short."""
        cells = rows_of(self.sweep, trials, runners, most=rows)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        while len(widths) > 5 and sum(widths[:-1]) + 2 * len(widths) + min(widths[-1], STATE_WIDTH) > width:
            del widths[-3]  # the last setting
            for row in cells:
                del row[-3]
        lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in cells]
        if len(trials) > rows:
            lines.append(f"... and {len(trials) - rows} more in {self.sweep.folder / 'leaderboard.csv'}")
        return [*lines, self.footer(trials)]

    def footer(self, trials: Sequence[Trial]) -> str:
        """Return a line that says how far the sweep is."""
        counts, done = Counter(map(state_of, trials)), sum(map(is_finished, trials))
        parts = [f"{done} of {self.sweep.trials} trials"]
        parts += [f"{counts[state]} {state}" for state in ("pruned", "failed") if counts[state]]
        new, left = done - self.done_before, self.sweep.trials - done
        if new > 0 and left > 0:
            parts.append(f"ETA {duration((time.monotonic() - self.began) / new * left)}")
        return ", ".join(parts)
