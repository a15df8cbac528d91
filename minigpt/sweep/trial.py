"""One trial: its trainings one after the other, each a process of its own, watched until the result is known."""

import math
import signal
import statistics
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from minigpt.children import Child
from minigpt.faults import BUG, FINISHED, INTERRUPTED, MEANINGS, STOPPED
from minigpt.redact import redact
from minigpt.rundir.rows import read_rows
from minigpt.screen import tell
from minigpt.sweep.settings import Sweep
from minigpt.sweep.space import overrides

COMPLETE, PRUNED, RUNNING, FAILED = TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.FAIL


def run_number(trial: FrozenTrial) -> int:
    """Return the number that names a trial's folder: its own, or that of the failed trial that it tries again."""
    return trial.user_attrs.get("again", trial.number)


def run_dir(sweep: Sweep, trial: FrozenTrial, place: int) -> Path:
    """Return the run directory of a trial's seed at this place (0, 1, ...)."""
    if sweep.runs:
        return sweep.runs[frozenset(overrides(trial.params))]
    number = run_number(trial)
    return sweep.folder / "trials" / (f"{number:04d}" if sweep.config.seeds == 1 else f"{number:04d}-{place}")


class TrialRun:
    """Runs the trainings of a trial until it has a result, or a checkpoint if the sweep stops.

    Args:
        study: keeps the trial.
        trial: as it was when the run began.
        gpus, threads: to run it on; "" without a GPU.
        lock: descriptor of the sweep's lock, which the trainings hold, too.
    """

    def __init__(self, sweep: Sweep, study: optuna.Study, trial: FrozenTrial, gpus: str, threads: int, lock: int):
        self.sweep, self.study, self.trial = sweep, study, trial
        self.gpus, self.threads, self.lock = gpus, threads, lock
        self.stopping = self.pruned = False  # the former is set when the whole sweep stops
        self.live = optuna.Trial(study, trial._trial_id)
        self.values: list[float] = list(trial.user_attrs.get("values", []))  # of the seeds that are done
        self.child: Child | None = None
        self.rows: list[dict[str, Any]] = []
        self.began = time.monotonic()
        self.looks = self.run()  # the sweep's loop advances it

    @property
    def output(self) -> Path | None:
        """The file that its trainings print to; None for the screen: `train -m`, one at a time."""
        if self.sweep.runs and self.sweep.config.workers == 1:
            return None
        return self.sweep.folder / "logs" / f"{run_number(self.trial):04d}.txt"

    def run(self) -> Iterator[None]:
        """Bring the trial to its result. Yields between two looks at it."""
        config = self.sweep.config
        # A sweep that was killed may have reported the last mark and not obeyed the verdict.
        self.pruned = bool(self.trial.intermediate_values) and not self.values and self.live.should_prune()
        while len(self.values) < config.seeds and not self.pruned and not self.stopping:
            code = yield from self.train()
            if code == FINISHED and not self.pruned:
                if not (values := finite(self.rows, config.sweep.metric)):
                    return self.fail(f"complete, but its metrics.jsonl has no {config.sweep.metric}", code)
                self.values.append(min(values))
                self.live.set_user_attr("values", self.values)
            elif code is None:
                return self.fail(f"hung: nothing was written for {config.sweep.hang_minutes:g} min", code)
            elif not self.pruned and not (self.stopping and code in (STOPPED, INTERRUPTED, -signal.SIGTERM)):
                return self.fail(cause_of(code, self.child.last_lines() if self.child else []), code)
        if self.pruned:
            self.study.tell(self.live, state=PRUNED)
        elif len(self.values) == config.seeds:
            self.study.tell(self.live, statistics.fmean(self.values))

    def train(self) -> Generator[None, None, int | None]:
        """Begin or continue the training of the next seed, and watch it; return its exit code, None if it hung."""
        config, run = self.sweep.config, run_dir(self.sweep, self.trial, len(self.values))
        metrics = run / "metrics.jsonl"
        # The sweep asks SLURM to queue the job again; its trials must not.
        environment = {"SLURM_JOB_ID": "", "SLURM_ARRAY_JOB_ID": ""}
        environment |= {"CUDA_VISIBLE_DEVICES": self.gpus} if self.gpus else {}
        if self.output is None:
            tell(f"=== Trial {run_number(self.trial)}: {' '.join(overrides(self.trial.params)) or 'as given'}")
        self.child = Child(self.command(run), self.output, environment=environment, lock=self.lock)
        limit, size, alive_at = 60 * config.sweep.hang_minutes or math.inf, 0, time.monotonic()
        while (code := self.child.poll()) is None:
            yield
            if self.stopping or self.pruned:
                self.child.stop()
            # output, too: preparing and a first stage log no rows
            written = sum(path.stat().st_size for path in (metrics, self.output) if path and path.exists())
            if written != size:
                size, alive_at = written, time.monotonic()
                self.judge(metrics)
            if time.monotonic() > alive_at + limit:
                self.child.kill()
                limit = -1.0
        self.judge(metrics)
        return None if limit < 0 else code

    def command(self, run: Path) -> list[str]:
        """Return the command that trains the next seed."""
        words = [*self.sweep.train, *self.sweep.shared, *overrides(self.trial.params)]
        if self.sweep.runs:
            return words
        config, extra = self.sweep.config, [f"run.dir={run}"]
        if config.seeds > 1:
            extra.append(f"seed={config.seed + len(self.values)}")
        if config.logger.name == "wandb" and config.logger.group is None:
            extra.append(f"logger.group={self.sweep.folder.resolve().name}")
        if config.trainer.threads == 0 and "trainer.threads" not in self.trial.params:
            extra.append(f"trainer.threads={self.threads}")
        return [*words, *extra]

    def judge(self, metrics: Path) -> None:
        """Read the rows, report the first seed's value at each new mark, and note if the pruner finds it behind."""
        self.rows = read_rows(metrics)
        if self.pruned or self.values or not self.sweep.mark_tokens:
            return
        reported = self.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values
        for tokens, value in marks(self.rows, self.sweep.mark_tokens, self.sweep.config.sweep.metric):
            if tokens not in reported and not self.pruned:
                self.live.report(value, tokens)
                self.pruned = self.live.should_prune()

    def fail(self, cause: str, code: int | None) -> None:
        """Note that the trial failed, and why."""
        self.live.set_user_attr("cause", redact(cause))
        self.live.set_user_attr("code", code)
        self.study.tell(self.live, state=FAILED)


def finite(rows: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    """Return a metric's finite values."""
    return [value for row in rows if isinstance(value := row.get(metric), int | float) and math.isfinite(value)]


def marks(rows: Sequence[Mapping[str, Any]], every_tokens: int, metric: str) -> Iterator[tuple[int, float]]:
    """Yield (tokens, best value so far) at each multiple of `every_tokens` that a run has passed.

    The last row is left out: it may be the run's end, and a run at its end is complete.
    """
    best, passed = math.inf, 0
    for row in rows[:-1]:
        if finite([row], metric) and isinstance(row.get("tokens"), int):
            best = min(best, row[metric])
            for mark in range(passed + 1, row["tokens"] // every_tokens + 1):
                yield mark * every_tokens, best
            passed = max(passed, row["tokens"] // every_tokens)


def cause_of(code: int, lines: Sequence[str]) -> str:
    """Return why a training failed, by its exit code (negative: a signal) and the last lines of its output."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, most likely by the system because memory ran out (exit -9)"
    if code < 0:
        return f"ended by {signal.Signals(-code).name} (exit {code})"
    if code in MEANINGS and code != BUG:
        return f"{MEANINGS[code]} (exit {code})"
    return f"crashed (exit {code}): {lines[-1].strip()[:200] if lines else 'it printed nothing'}"
