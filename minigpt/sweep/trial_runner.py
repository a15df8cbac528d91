"""One trial on one slot: its trainings one after the other, watched until its result is known."""

import contextlib
import math
import re
import signal
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt.faults import BUG, FINISHED, INTERRUPTED, MEANINGS, STOPPED
from minigpt.redact import redact
from minigpt.report.record import number, training_seconds
from minigpt.sweep.locks import Claim
from minigpt.sweep.process import GrowingRows, Slot, TrainingProcess
from minigpt.sweep.search import Pruning, marks
from minigpt.sweep.settings import Sweep
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial, TrialStore, is_finished

MAX_RESTARTS = 3  # of a training that stopped by a signal which the sweep did not send
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|\bMemoryError\b", re.IGNORECASE)


@dataclass(eq=False)
class TrialRunner:
    """Runs the trainings of a trial until it has a result."""

    sweep: Sweep
    store: TrialStore  # keeps results
    trial: Trial
    claim: Claim  # the right to run the trial
    slot: Slot  # the devices and threads to run it on
    pruning: Pruning  # decides whether the trial is stopped early
    process: TrainingProcess | None = None
    pruned: float | None = None  # the value with which the pruner stopped it
    stopping: bool = False  # because the whole sweep stops

    def __post_init__(self) -> None:
        self.values: list[float] = list(self.trial.user_attrs.get("values", []))  # of the seeds that are done
        self.rows = GrowingRows(self.run_dir / "metrics.jsonl")
        self.looks = self.run()  # the sweep's loop advances it

    @property
    def run_dir(self) -> Path:
        """The run directory of the seed that runs, or would run next."""
        return self.sweep.run_dir(self.trial.number, min(len(self.values), self.sweep.config.seeds - 1))

    @property
    def output(self) -> Path:
        """The file that its trainings print to."""
        return self.sweep.folder / "logs" / f"{self.trial.number:04d}.txt"

    def run(self) -> Iterator[None]:
        """Bring the trial to its result, or to a checkpoint if the sweep stops. Yields between two looks at it."""
        before = self.store.trials()[: self.trial.number]
        twin = next((each for each in before if is_finished(each) and each.params == self.trial.params), None)
        if twin is not None:
            kept = {name: twin.user_attrs[name] for name in ("cause", "values") if name in twin.user_attrs}
            same_as = twin.user_attrs.get("same_as", twin.number)
            self.trial = self.store.note(self.trial, twin.state, twin.value, **kept, same_as=same_as)
            return
        restarts = 0
        while len(self.values) < self.sweep.config.seeds:
            self.rows = GrowingRows(self.run_dir / "metrics.jsonl")
            self.rows.refresh()
            self.judge()  # the worker that reported the last mark may have been killed before the verdict
            code: int | None = STOPPED
            if self.pruned is None and not self.stopping:
                code = yield from self.train()
            if self.pruned is not None:
                self.trial = self.store.note(self.trial, PRUNED, self.pruned, **self.speed())
                return
            if code is None:
                return self.fail(f"hung: no new row for {self.sweep.config.sweep.hang_minutes:g} min")
            if code == FINISHED:
                metric = self.sweep.config.sweep.metric
                values = [row[metric] for row in self.rows.rows if number(row.get(metric)) is not None]
                if not values:
                    return self.fail(f"complete, but its metrics.jsonl has no {metric}")
                self.values.append(min(values))
                self.trial = self.store.note(self.trial, **self.speed(), values=self.values)
            elif self.stopping and code in (STOPPED, INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL):
                return
            elif code == STOPPED and restarts < MAX_RESTARTS:
                restarts += 1
            else:
                assert self.process is not None
                return self.fail(cause_of(code, self.process.last_lines()))
        self.trial = self.store.note(self.trial, COMPLETE, statistics.fmean(self.values))

    def train(self) -> Generator[None, None, int | None]:
        """Begin or continue the training of the next seed, and watch it; return its exit code, None if it hung."""
        stop_file = self.run_dir / "STOP"  # all processes of the training obey it after the same step
        stop_file.unlink(missing_ok=True)  # left by a sweep that was killed after asking
        self.output.parent.mkdir(exist_ok=True)
        command = self.sweep.command(self.trial, len(self.values), self.slot)
        environment = {
            **self.slot.environment,
            "SLURM_JOB_ID": "",
            "SLURM_ARRAY_JOB_ID": "",
        }  # the sweep asks SLURM to queue the job again, its trials must not
        lock = self.claim.file.fileno()
        self.process = TrainingProcess(command, self.output, environment=environment, lock=lock)
        limit, last_row = 60 * self.sweep.config.sweep.hang_minutes or math.inf, time.monotonic()
        hung = False
        while (code := self.process.poll()) is None:
            yield
            self.claim.beat()
            if self.stopping:
                self.process.stop()
            if self.rows.refresh():
                last_row = time.monotonic()
                self.judge()
                if self.pruned is not None:
                    with contextlib.suppress(OSError):
                        stop_file.touch()
            if time.monotonic() > last_row + limit:
                hung = True
                self.process.kill()
        self.rows.refresh()
        self.judge()
        stop_file.unlink(missing_ok=True)
        return None if hung else code

    def judge(self) -> None:
        """Report the first seed's value at each new mark, and note whether the pruner finds it behind."""
        if self.pruned is not None or self.values or not self.sweep.mark_tokens:
            return
        for tokens, value in marks(self.rows.rows, self.sweep.mark_tokens, self.sweep.config.sweep.metric):
            curve = self.trial.intermediate_values
            if tokens not in curve:
                self.trial = self.store.report(self.trial, tokens, value)
            elif tokens < max(curve):
                continue  # decided before
            if self.pruning.is_behind(self.trial.number, self.store.trials()):
                self.pruned = value
                return

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
        tail = [redact(line) for line in self.process.last_lines()]
        self.trial = self.store.note(self.trial, FAILED, **self.speed(), cause=redact(cause) + place, tail=tail)


def cause_of(code: int, lines: Sequence[str]) -> str:
    """Return why a training failed, without a full stop.

    Args:
        code: of the process; negative: the signal that ended it.
        lines: the last ones of its output.
    """
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, most likely by the system because memory ran out (exit -9)"
    if code < 0:
        return f"ended by {signal.Signals(-code).name} (exit {code})"
    if code in MEANINGS and code != BUG:
        return f"{MEANINGS[code]} (exit {code})"
    if any(OUT_OF_MEMORY.search(line) for line in lines):
        return f"out of memory (exit {code})"
    last = lines[-1].strip() if lines else "it printed nothing"
    return f"crashed (exit {code}): {last[:200]}"
