"""The inputs of a training, its progress, and when it ends."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import lightning as L

from minigpt.checkpoint import contents, load
from minigpt.config.schema import TrainConfig
from minigpt.data.prepared import Prepared
from minigpt.machine.hardware import Hardware
from minigpt.ranks.group import Processes
from minigpt.rundir.run_directory import RunDirectory


@dataclass(frozen=True)
class TrainingJob:
    """The inputs of a training; they stay the same when the run goes back to an earlier checkpoint."""

    config: TrainConfig
    hardware: Hardware
    prepared: Prepared
    processes: Processes
    run: RunDirectory
    callbacks: Sequence[L.Callback]


@dataclass
class RunState:
    """Progress of a run. Saved with each checkpoint, and equal for equal runs."""

    step: int = 0  # optimizer steps done
    best_step: int = 0  # of the lowest val/loss so far
    best_loss: float | None = None  # nats per token
    seconds: float = 0.0  # training time used; counted only when max_minutes limits the run
    bad_steps: int = 0  # skipped in a row, up to now
    recent_losses: list[float] = field(default_factory=list)  # of good steps; kept only when guard.spike_zscore is on
    loss_scale: float = 0.0  # fp16 only: the factor on the loss
    loss_scale_steps: int = 0  # fp16 only: steps without an overflow since it changed
    patience_over: bool = False  # as the last validation found


class StopRequest(NamedTuple):
    """Requests of one process, or of all together; obeyed at the end of an optimizer step."""

    stop: bool = False  # after this step, with a checkpoint; the same command continues the run
    requeue: bool = False  # and SLURM is asked to run the job again
    out_of_time: bool = False  # max_minutes is over: the run is finished
    by_callback: bool = False  # a user's callback has set trainer.should_stop


def read_run_state(checkpoint: Path | None) -> RunState:
    """Return the state that a checkpoint holds; without a checkpoint, that of a new run."""
    if checkpoint is None:
        return RunState()
    content = load.read_json(checkpoint, contents.STATE)
    return RunState(**{name: value for name, value in content.items() if name in RunState.__dataclass_fields__})


def out_of_patience(state: RunState, config: TrainConfig) -> bool:
    """Return whether `trainer.patience` validations have passed since the best one."""
    allowed = config.trainer.patience * config.validate.every_steps
    return allowed > 0 and state.step - state.best_step >= allowed


def steps_of(config: TrainConfig) -> int | None:
    """Return a run's optimizer steps; None when only time limits it. A step is never cut, so max_tokens rounds up."""
    if config.trainer.max_tokens is not None:
        return math.ceil(config.trainer.max_tokens / config.batch_tokens)
    return config.trainer.max_steps


def reached_limit(state: RunState, config: TrainConfig) -> str | None:
    """Return the limit that a run in this state has reached, or None if it goes on."""
    total_steps, minutes = steps_of(config), config.trainer.max_minutes
    if total_steps is not None and state.step >= total_steps:
        return next((name for name in ("max_tokens", "epochs") if getattr(config.trainer, name)), "max_steps")
    if minutes is not None and state.seconds >= 60 * minutes:
        return "max_minutes"
    return "patience" if state.patience_over and out_of_patience(state, config) else None


def is_due(step: int, *every_steps: int) -> bool:
    """Return whether work that is done every `every_steps` steps is due at `step`; 0 = never."""
    return any(every > 0 and step % every == 0 for every in every_steps)


class Clock:
    """Counts training time without validations, samples and saves, from the `seconds` of the run so far."""

    def __init__(self, seconds: float = 0.0):
        self._counted = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Start counting, or continue."""
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        return self._counted + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that a `with` block takes."""
        self._counted, self._since = self.seconds, None
        try:
            yield
        finally:
            self.start()
