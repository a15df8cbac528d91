"""One trial in one slot: its trainings one after the other, watched until its result is known."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import FINISHED, INTERRUPTED, STOPPED
from minigpt.redact import redact
from minigpt.report.record import number, training_seconds
from minigpt.sweep.locks import Claim
from minigpt.sweep.outcome import cause_of
from minigpt.sweep.process import Rows, TrialProcess
from minigpt.sweep.pruning import is_behind, marks
from minigpt.sweep.settings import Plan
from minigpt.sweep.slots import Slot
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, Trial
from minigpt.sweep.trial_store import Ledger

STOP_FILE = "STOP"  # training looks for it at the end of each step
MAX_RESTARTS = 3  # of a training that a signal stopped without our asking
TAIL_LINES = 20  # of a failed trial's output are kept


class Attempt:
    """Carries a trial from where it stands to its result.

    Args:
        plan: of the sweep.
        ledger: where results go.
        trial: to run.
        claim: on the trial; given back at the end.
        slot: where.
    """

    def __init__(self, plan: Plan, ledger: Ledger, trial: Trial, *, claim: Claim, slot: Slot):
        self.plan = plan
        self.ledger = ledger
        self.trial = trial
        self.claim = claim
        self.slot = slot
        self.values: list[float] = list(trial.facts.get("values", []))  # of the seeds that are done
        self.process: TrialProcess | None = None
        self.rows = Rows(self.run_dir / "metrics.jsonl")
        self.last_row = time.monotonic()
        self.restarts = 0
        self.pruned: tuple[int, float] | None = None  # mark and value that it was stopped with
        self.hung = False
        self.stopping = False
        self.over = False  # its result is known, or it was stopped for another time

    @property
    def run_dir(self) -> Path:
        """Of the seed that runs, or would run next."""
        return self.plan.run_dir(self.trial.number, min(len(self.values), self.plan.config.seeds - 1))

    @property
    def output(self) -> Path:
        """What its trainings print."""
        return self.plan.folder / "logs" / f"{self.trial.label}.txt"

    def begin(self, trials: Sequence[Trial]) -> None:
        """Take over the result of a trial with the same values, or start the training."""
        twin = next((other for other in trials if other.finished and other.params == self.trial.params), None)
        if twin is not None and twin.number < self.trial.number:
            kept = {name: twin.facts[name] for name in ("cause", "values") if name in twin.facts}
            self.ledger.note(self.trial, **kept, same_as=twin.facts.get("same_as", twin.number))
            self.end(twin.state, twin.value)
            return
        self.rows.refresh()
        self.judge(lambda: trials)
        if self.pruned:
            self.end(PRUNED, self.pruned[1])
        else:
            self.start()

    def start(self) -> None:
        """Begin or continue the training of the next seed."""
        with contextlib.suppress(OSError):
            (self.run_dir / STOP_FILE).unlink()  # of a sweep that was killed after asking
        self.rows = Rows(self.run_dir / "metrics.jsonl")
        self.last_row = time.monotonic()
        self.process = TrialProcess(
            self.plan.command(self.trial, len(self.values), self.slot),
            self.output,
            environment=self.slot.environment,
            claim=self.claim.file.fileno(),
        )

    def advance(self, trials: Callable[[], Sequence[Trial]]) -> None:
        """Look at the training: note its values, stop it when it is behind, end it when it hangs, and take its result.

        Args:
            trials: all trials of the sweep.
        """
        assert self.process is not None
        self.claim.beat()
        if self.rows.refresh():
            self.last_row = time.monotonic()
            if not self.stopping:
                self.judge(trials)
        code = self.process.poll()
        if code is not None:
            self.conclude(code, trials)
        elif self.is_hanging():
            self.hung = True
            self.process.kill()

    def is_hanging(self) -> bool:
        """Whether there has been no new row for too long."""
        limit = 60 * self.plan.config.sweep.hang_minutes
        return limit > 0 and time.monotonic() > self.last_row + limit

    def judge(self, trials: Callable[[], Sequence[Trial]]) -> None:
        """Compare the trial with the others at each mark it has newly passed (its first seed only)."""
        plan = self.plan
        if self.pruned or self.values or plan.config.search.pruner == "none":
            return
        for tokens, value in marks(self.rows.rows, plan.prune_every, plan.config.sweep.metric):
            if tokens in self.trial.curve:
                continue
            others = [other for other in trials() if other.number != self.trial.number]
            if is_behind(
                self.trial,
                tokens,
                value,
                others=others,
                search=plan.config.search,
                first=plan.prune_every,
                last=plan.whole_run,
            ):
                self.pruned = tokens, value
                self.ask_to_stop()
                return
            self.ledger.report(self.trial, tokens, value)

    def ask_to_stop(self) -> None:
        """Leave the request in the run directory, which all its processes obey at the same step."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                (self.run_dir / STOP_FILE).touch()

    def stop(self) -> None:
        """The sweep ends for now: the training too, with a checkpoint."""
        self.stopping = True
        if self.process is not None:
            self.process.stop()

    def conclude(self, code: int, trials: Callable[[], Sequence[Trial]]) -> None:
        """The training has ended: take its result, or start what comes next."""
        self.rows.refresh()
        self.judge(trials)
        with contextlib.suppress(OSError):
            (self.run_dir / STOP_FILE).unlink()
        if self.pruned:
            self.note_speed()
            self.end(PRUNED, self.pruned[1])
        elif self.hung:
            self.fail(f"hung: no new row for {self.plan.config.sweep.hang_minutes:g} min")
        elif code == FINISHED:
            self.take_value()
        elif self.stopping and code in (STOPPED, INTERRUPTED, -15, -9):
            self.end(None)
        elif code == STOPPED and self.restarts < MAX_RESTARTS:
            self.restarts += 1
            self.start()
        else:
            assert self.process is not None
            self.fail(cause_of(code, self.process.said()))

    def take_value(self) -> None:
        """Of a training that is complete."""
        metric = self.plan.config.sweep.metric
        values = [row[metric] for row in self.rows.rows if number(row.get(metric)) is not None]
        if not values:
            self.fail(f"complete, but its metrics.jsonl has no {metric}")
            return
        self.values.append(min(values))
        self.note_speed()
        self.ledger.note(self.trial, values=self.values)
        if len(self.values) == self.plan.config.seeds:
            self.end(COMPLETE, statistics.fmean(self.values))
        elif self.stopping:
            self.end(None)
        else:
            self.start()

    def note_speed(self) -> None:
        """How long it took, and how fast it was."""
        speeds = [row["tokens_per_second"] for row in self.rows.rows if number(row.get("tokens_per_second"))]
        facts: dict[str, Any] = {"tokens_per_second": statistics.median(speeds)} if speeds else {}
        if self.rows.rows:
            facts["seconds"] = self.trial.facts.get("seconds", 0.0) + training_seconds(self.rows.rows)
            facts["tokens"] = self.trial.facts.get("tokens", 0) + int(number(self.rows.rows[-1].get("tokens")) or 0)
        self.ledger.note(self.trial, **facts)

    def fail(self, cause: str) -> None:
        """The trial's result is that it failed, and why."""
        assert self.process is not None
        place = f" (run {len(self.values) + 1} of {self.plan.config.seeds})" if self.plan.config.seeds > 1 else ""
        self.note_speed()
        tail = [redact(line) for line in self.process.said(TAIL_LINES)]
        self.ledger.note(self.trial, cause=redact(cause) + place, tail=tail)
        self.end(FAILED)

    def end(self, state: str | None, value: float | None = None) -> None:
        """Write the result down (none: another time), and give the trial back."""
        if state is not None:
            self.ledger.finish(self.trial, state, value)
        self.claim.release()
        self.over = True
