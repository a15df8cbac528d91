"""The results, for people and programs: the table on the page and the screen, and the files of a sweep.

The files are leaderboard.csv, summary.json, best/ and sweep.sbatch.
"""

import contextlib
import csv
import io
import os
import platform
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigpt.config.compose import compose
from minigpt.config.convert import as_typed
from minigpt.config.yaml_files import to_yaml
from minigpt.files import write_file, write_json
from minigpt.invocation import command_line, typed
from minigpt.redact import redact, redact_arguments
from minigpt.report.record import number, read_text
from minigpt.screen import duration, short_number
from minigpt.sweep.locks import is_alive, owner
from minigpt.sweep.settings import Sweep, overrides
from minigpt.sweep.trial_runner import TrialRunner
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial, is_finished, ranked, standard_error, state_of

REDRAW_SECONDS = 0.5
STATE_WIDTH = 24  # characters of a long state that are shown before another setting is
SLURM_SCRIPT = """\
#!/bin/bash
# Each element of this array is {workers} worker(s) of one sweep; they share its directory. Submit it with
#   sbatch {file}
# and again at any time for more workers, or to go on after a time limit.
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
{gpus}#SBATCH --time=08:00:00
#SBATCH --output={folder}/slurm-%A_%a.txt
#SBATCH --requeue
# Two minutes before the time is up: every trial stops with a checkpoint, and the job is queued again.
#SBATCH --signal=B:USR1@120

cd {here} || exit 2
exec {command}  # in this shell's place, which is what SLURM sends its signals to
"""


def rows_of(
    sweep: Sweep, trials: Sequence[Trial], runners: Sequence[TrialRunner] = (), *, most: int | None = None
) -> list[list[str]]:
    """Return the table's cells, its head first: running trials, then the others by rank, `most` of them."""
    last = [key.rpartition(".")[2] for key in sweep.space]  # short names, if no other setting has the same
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
        point = [as_typed(trial.params[key]) for key in sweep.space]
        speed_text = short_number(speed) if speed else ""
        rank, number_text = ranks.get(trial.number, ""), str(trial.number)
        rows.append([rank, number_text, value_text(trial, value), *point, speed_text, state])
    return rows


def state_in_words(sweep: Sweep, trial: Trial) -> str:
    """Return a trial's result in words, or which worker runs it."""
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
    """Return a value as the table shows it: with its standard error if there are several seeds."""
    error = standard_error(trial)
    return "" if value is None else f"{value:.4f}" + ("" if error is None else f" +- {error:.4f}")


def news_of(trial: Trial, sweep: Sweep) -> str:
    """Return the line about a finished trial."""
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
        """Redraw the table in place, as wide as the terminal."""
        size = shutil.get_terminal_size()
        lines = self.lines(trials, runners, rows=max(4, size.lines - 4), width=size.columns - 1)
        self.say("\n".join(line[: size.columns - 1] for line in lines))
        self.drawn, self.drawn_at = len(lines), time.monotonic()

    def lines(
        self, trials: Sequence[Trial], runners: Sequence[TrialRunner] = (), *, rows: int, width: int = 10_000
    ) -> list[str]:
        """Return the table's lines. If the width is too small, the last settings are left out."""
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


def write_results(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Write everything but the page.

    Raises:
        OSError: the sweep's directory can't be written.
    """
    found = entries(sweep, trials)
    write_file(sweep.folder / "leaderboard.csv", leaderboard(sweep, found))
    best = found[0] if found and found[0]["rank"] else None
    summary = {
        "name": sweep.name,
        "metric": sweep.config.sweep.metric,
        "seeds": sweep.config.seeds,
        "trials_wanted": sweep.trials,
        "states": dict(Counter(map(state_of, trials))),
        "tokens": sum(trial.user_attrs.get("tokens", 0) for trial in trials),
        "seconds": round(sum(trial.user_attrs.get("seconds", 0.0) for trial in trials), 3),
        "best": best,
        "trials": sorted(found, key=lambda each: each["number"]),
    }
    write_json(sweep.folder / "summary.json", summary)
    if best is not None:
        write_best(sweep, best)


def entries(sweep: Sweep, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as the files show them, the best first."""
    found = []
    for rank, trial in enumerate(ranked(trials), start=1):
        values = trial.user_attrs.get("values", [])
        shown = trial.user_attrs.get("same_as", trial.number), values.index(min(values)) if values else 0
        found.append(
            {
                "rank": rank if trial.state == COMPLETE else None,
                "number": trial.number,
                "state": state_of(trial),
                "value": trial.value,
                "standard_error": standard_error(trial),
                "params": trial.params,
                "run.dir": str(sweep.run_dir(*shown)),  # of its best seed; of its twin if it was not run itself
                **dict(sorted(trial.user_attrs.items())),
            }
        )
    return found


def leaderboard(sweep: Sweep, found: Sequence[Mapping[str, Any]]) -> str:
    """Return the entries as CSV."""
    text = io.StringIO()
    error = ["standard_error"] if sweep.config.seeds > 1 else []
    heads = ["rank", "value", *error, "state", *sweep.space, "run.dir"]
    writer = csv.DictWriter(text, heads, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**each, **{key: as_typed(value) for key, value in each["params"].items()}} for each in found)
    return text.getvalue()


def write_best(sweep: Sweep, best: Mapping[str, Any]) -> None:
    """Write the best trial's whole config as an experiment, and the commands that train it again."""
    folder, rerun, values = sweep.folder / "best", rerun_command(sweep), overrides(best["params"])
    commands = f"{rerun}\n{typed('train')} {redact(shlex.join([*sweep.shared, *values]))}\n"
    if read_text(folder / "command.txt") == commands:
        return  # this file is written last, so the others are there
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    head = f"Trial {best['number']} of {sweep.name}: {sweep.config.sweep.metric} {best['value']:.6g}"
    with contextlib.redirect_stderr(io.StringIO()):  # notes on settings
        text = redact(to_yaml(compose("train", [*sweep.shared, *values])))
    write_file(folder / "experiment" / "best.yaml", f"# @package _global_\n# {head}\n# {rerun}\n{text}")
    write_file(folder / "command.txt", commands)


def rerun_command(sweep: Sweep) -> str:
    """Return the command that trains the best settings again."""
    return f"{typed('train')} --config-dir {shlex.quote(str(sweep.folder / 'best'))} experiment=best"


def write_slurm_script(sweep: Sweep) -> None:
    """Write sweep.sbatch into the sweep's directory, for the user to check (partition, time) and submit."""
    file, config = sweep.folder / "sweep.sbatch", sweep.config
    devices = config.workers * config.trainer.devices
    text = SLURM_SCRIPT.format(
        workers=config.workers,
        file=shlex.quote(str(file)),
        name=sweep.name.replace(" ", "-"),
        last=min(sweep.trials, 4) - 1,
        cpus=4 * devices,
        gpus="" if config.trainer.device in ("cpu", "mps") else f"#SBATCH --gpus={devices}\n",
        folder=sweep.folder,
        here=shlex.quote(os.getcwd()),
        command=shlex.join([*command_line("sweep"), *redact_arguments(sweep.arguments)]),
    )
    write_file(file, text)
