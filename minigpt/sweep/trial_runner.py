"""One trial on one slot: its trainings one after the other, watched until its result is known."""

import contextlib
import re
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import BUG, FINISHED, INTERRUPTED, MEANINGS, STOPPED
from minigpt.redact import redact
from minigpt.report.record import number, training_seconds
from minigpt.sweep.choosing import Pruning, marks
from minigpt.sweep.locks import Claim
from minigpt.sweep.process import GrowingRows, TrainingProcess
from minigpt.sweep.settings import Sweep
from minigpt.sweep.slots import Slot
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial, TrialState, TrialStore, is_finished

STOP_FILE = "STOP"  # training looks for it at the end of each step
MAX_RESTARTS = 3  # of a training that a signal stopped without our asking
TAIL_LINES = 20  # of a failed trial's output are kept
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|\bMemoryError\b", re.IGNORECASE)

Trials = Callable[[], Sequence[Trial]]  # reads all trials of the sweep


class TrialRunner:
    """Carries a trial from where it stands to its result.

    Args:
        sweep: the trial's.
        store: keeps results.
        trial: to run.
        claim: on the trial; given back at the end.
        slot: the devices and threads to run it on.
        pruning: decides whether the trial is stopped early.
    """

    def __init__(self, sweep: Sweep, store: TrialStore, trial: Trial, *, claim: Claim, slot: Slot, pruning: Pruning):
        self.sweep = sweep
        self.store = store
        self.trial = trial
        self.claim = claim
        self.slot = slot
        self.pruning = pruning
        self.values: list[float] = list(trial.user_attrs.get("values", []))  # of the seeds that are done
        self.process: TrainingProcess | None = None
        self.rows = GrowingRows(self.run_dir / "metrics.jsonl")
        self.last_row = time.monotonic()
        self.restarts = 0
        self.judged = 0  # tokens at the last mark that the pruner was asked about
        self.pruned: float | None = None  # the value with which the pruner stopped it
        self.hung = False
        self.stopping = False
        self.over = False  # its result is known, or the whole sweep is being stopped

    @property
    def run_dir(self) -> Path:
        """The run directory of the seed that runs, or would run next."""
        return self.sweep.run_dir(self.trial.number, min(len(self.values), self.sweep.config.seeds - 1))

    @property
    def output(self) -> Path:
        """The file that its trainings print to."""
        return self.sweep.folder / "logs" / f"{self.trial.number:04d}.txt"

    def begin(self, trials: Trials) -> None:
        """Take over the result of an earlier trial with the same values, or start the training."""
        before = trials()[: self.trial.number]
        twin = next((each for each in before if is_finished(each) and each.params == self.trial.params), None)
        if twin is not None:
            kept = {name: twin.user_attrs[name] for name in ("cause", "values") if name in twin.user_attrs}
            self.end(twin.state, twin.value, **kept, same_as=twin.user_attrs.get("same_as", twin.number))
            return
        self.rows.refresh()
        self.judge(trials)
        if self.pruned is not None:
            self.end(PRUNED, self.pruned)
        elif len(self.values) == self.sweep.config.seeds:  # killed just before the result was stored
            self.end(COMPLETE, statistics.fmean(self.values))
        else:
            self.start()

    def start(self) -> None:
        """Begin or continue the training of the next seed."""
        self.remove_stop_file()  # of a sweep that was killed after asking
        self.rows = GrowingRows(self.run_dir / "metrics.jsonl")
        self.last_row = time.monotonic()
        self.output.parent.mkdir(exist_ok=True)
        command = self.sweep.command(self.trial, len(self.values), self.slot)
        environment, lock = self.slot.environment, self.claim.file.fileno()
        self.process = TrainingProcess(command, self.output, environment=environment, lock=lock)

    def advance(self, trials: Trials) -> None:
        """Note new values, stop the training when it is behind, kill it when it hangs, and take its result."""
        assert self.process is not None
        self.claim.beat()
        if self.rows.refresh():
            self.last_row = time.monotonic()
            if not self.stopping:
                self.judge(trials)
        limit = 60 * self.sweep.config.sweep.hang_minutes
        code = self.process.poll()
        if code is not None:
            self.conclude(code, trials)
        elif limit > 0 and time.monotonic() > self.last_row + limit:
            self.hung = True
            self.process.kill()

    def judge(self, trials: Trials) -> None:
        """Report the first seed's value at each new mark, and ask the training to stop if it is behind there."""
        if self.pruned is not None or self.values or not self.sweep.mark_tokens:
            return
        for tokens, value in marks(self.rows.rows, self.sweep.mark_tokens, self.sweep.config.sweep.metric):
            curve = self.trial.intermediate_values
            if tokens not in curve:
                self.trial = self.store.report(self.trial, tokens, value)
            elif tokens <= self.judged or tokens < max(curve):
                continue  # decided; but whoever reported the last mark may have been killed before the verdict
            self.judged = tokens
            if self.pruning.is_behind(self.trial.number, trials()):
                self.pruned = value
                if self.process is not None:
                    with contextlib.suppress(OSError):
                        (self.run_dir / STOP_FILE).touch()  # all processes of the run obey it after the same step
                return

    def remove_stop_file(self) -> None:
        """Take back a request to stop."""
        with contextlib.suppress(OSError):
            (self.run_dir / STOP_FILE).unlink()

    def stop(self) -> None:
        """Ask the training once to stop with a checkpoint, because the sweep stops."""
        if self.process is not None and not self.stopping:
            self.process.send(signal.SIGTERM)
        self.stopping = True

    def conclude(self, code: int, trials: Trials) -> None:
        """Take the result of a training that has ended, or start the next one."""
        assert self.process is not None
        self.rows.refresh()
        self.judge(trials)
        self.remove_stop_file()
        if self.pruned is not None:
            self.end(PRUNED, self.pruned, **self.speed())
        elif self.hung:
            self.fail(f"hung: no new row for {self.sweep.config.sweep.hang_minutes:g} min")
        elif code == FINISHED:
            self.take_value()
        elif self.stopping and code in (STOPPED, INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL):
            self.end(None)
        elif code == STOPPED and self.restarts < MAX_RESTARTS:
            self.restarts += 1
            self.start()
        else:
            self.fail(cause_of(code, self.process.last_lines()))

    def take_value(self) -> None:
        """Note the best validation of a complete training; the last seed's completes the trial."""
        metric = self.sweep.config.sweep.metric
        values = [row[metric] for row in self.rows.rows if number(row.get(metric)) is not None]
        if not values:
            self.fail(f"complete, but its metrics.jsonl has no {metric}")
            return
        self.values.append(min(values))
        noted = {**self.speed(), "values": self.values}
        if len(self.values) == self.sweep.config.seeds:
            self.end(COMPLETE, statistics.fmean(self.values), **noted)
        else:
            self.trial = self.store.note(self.trial, **noted)
            self.end(None) if self.stopping else self.start()

    def speed(self) -> dict[str, Any]:
        """Return how long the trial's trainings took up to now, and how fast the last one was."""
        rows, facts = self.rows.rows, self.trial.user_attrs
        speeds = [row["tokens_per_second"] for row in rows if number(row.get("tokens_per_second"))]
        noted: dict[str, Any] = {"tokens_per_second": statistics.median(speeds)} if speeds else {}
        if rows:
            noted["seconds"] = facts.get("seconds", 0.0) + training_seconds(rows)
            noted["tokens"] = facts.get("tokens", 0) + int(number(rows[-1].get("tokens")) or 0)
        return noted

    def fail(self, cause: str) -> None:
        """Note that the trial failed, and why."""
        assert self.process is not None
        seeds = self.sweep.config.seeds
        place = f" (run {len(self.values) + 1} of {seeds})" if seeds > 1 else ""
        tail = [redact(line) for line in self.process.last_lines(TAIL_LINES)]
        self.end(FAILED, **self.speed(), cause=redact(cause) + place, tail=tail)

    def end(self, state: TrialState | None, value: float | None = None, **facts: Any) -> None:
        """Store the result and facts about it (None: the trial goes on another time), and release the claim."""
        if state is not None:
            self.store.note(self.trial, **facts)
            self.trial = self.store.finish(self.trial, state, value)
        self.claim.release()
        self.over = True


def cause_of(code: int, lines: Sequence[str]) -> str:
    """Say why a training failed, without a full stop.

    Args:
        code: of the process; negative: the signal that ended it.
        lines: the last ones of its output.
    """
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, most likely by the system because memory ran out (exit -9)"
    if code < 0:
        return f"ended by {signal.Signals(-code).name} (exit {code})"
    if code in MEANINGS and code != BUG:
        return f"{MEANINGS[code].partition(',')[0]} (exit {code})"
    if any(OUT_OF_MEMORY.search(line) for line in lines):
        return f"out of memory (exit {code})"
    last = lines[-1].strip() if lines else "it printed nothing"
    return f"crashed (exit {code}): {last[:200]}"
