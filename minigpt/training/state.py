"""Where a run stands, how long it has trained, and when it ends."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from minigpt.config.schema import TrainConfig


@dataclass
class RunState:
    """Where a run stands. Saved with each checkpoint, and equal for equal runs."""

    step: int = 0  # optimizer steps done
    best_step: int = 0  # of the lowest val/loss so far
    best_loss: float | None = None  # nats per token
    seconds: float = 0.0  # training time used; counted only when max_minutes limits the run
    bad_steps: int = 0  # skipped in a row, up to now
    recent_losses: list[float] = field(default_factory=list)  # of good steps; kept only when guard.spike_zscore is on
    loss_scale: float = 0.0  # fp16 only: the factor on the loss
    loss_scale_steps: int = 0  # fp16 only: steps without an overflow since it changed


def out_of_patience(state: RunState, config: TrainConfig) -> bool:
    """Whether `trainer.patience` validations have passed since the best one."""
    allowed = config.trainer.patience * config.validate.every_steps
    return allowed > 0 and state.step - state.best_step >= allowed


def steps_of(config: TrainConfig) -> int | None:
    """Optimizer steps of a run; None when only time limits it. A step is never cut, so max_tokens rounds up."""
    if config.trainer.max_tokens is not None:
        return math.ceil(config.trainer.max_tokens / config.batch_tokens)
    return config.trainer.max_steps


def reached_limit(state: RunState, config: TrainConfig) -> str | None:
    """The limit that a run standing at `state` has reached, or None if it goes on."""
    total_steps, minutes = steps_of(config), config.trainer.max_minutes
    if total_steps is not None and state.step >= total_steps:
        return "max_tokens" if config.trainer.max_tokens is not None else "max_steps"
    if minutes is not None and state.seconds >= 60 * minutes:
        return "max_minutes"
    return "patience" if out_of_patience(state, config) else None


class Clock:
    """Counts training time: seconds without validations, samples and saves.

    Args:
        seconds: counted before, in a run that continues.
    """

    def __init__(self, seconds: float = 0.0):
        self._counted = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Start counting, or go on after `stop`."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop counting."""
        self._counted = self.seconds
        self._since = None

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        return self._counted + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time that a `with` block takes."""
        running = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()
