"""Where a run stands."""

from dataclasses import dataclass, field


@dataclass
class RunState:
    """Where a run stands. Saved with each checkpoint, and equal for equal runs."""

    step: int = 0  # optimizer steps done
    best_step: int = 0  # of the lowest val/loss so far
    best_loss: float | None = None  # nats per token
    seconds: float = 0.0  # training time used; counted only when max_minutes limits the run
    bad_steps: int = 0  # skipped in a row, up to now
    recent_losses: list[float] = field(default_factory=list)  # of good steps; kept only when guard.spike_zscore is on
