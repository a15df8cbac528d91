"""The guard before the update: what is not finite, or a wild outlier, never reaches the weights.

A bad step is skipped: its gradients are dropped (not multiplied by zero, which keeps a NaN a NaN), the weights stay.
Too many in a row, and the run goes back to the last good checkpoint and passes over the batches that were bad. Too
often, and it stops. What was passed over is kept by the run, so a run that continues passes over it too.
"""

import math
from collections.abc import Sequence

from minigpt.config.schema import GuardConfig


class RollBack(Exception):
    """Go back to before `first_step` and pass over the batches of the steps from there to `last_step`."""

    def __init__(self, first_step: int, last_step: int):
        super().__init__(f"steps {first_step} to {last_step} were bad")
        self.first_step = first_step
        self.last_step = last_step


def z_score(loss: float, window: Sequence[float]) -> float:
    """How many standard deviations a loss lies above the mean of recent ones; 0 while there are too few."""
    if len(window) < 16:
        return 0.0
    mean = math.fsum(window) / len(window)
    variance = math.fsum((value - mean) ** 2 for value in window) / (len(window) - 1)
    return (loss - mean) / math.sqrt(variance) if variance > 0 else 0.0


def fault_of(loss: float, grad_norm: float, window: Sequence[float], config: GuardConfig) -> str | None:
    """Why a step must not be made, or None.

    Args:
        loss: of the step, nats per token.
        grad_norm: of the step, before clipping.
        window: losses of recent good steps.
        config: the rules.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(grad_norm):
        return f"the gradient norm is {grad_norm}"
    if config.spike_zscore and (score := z_score(loss, window)) > config.spike_zscore:
        return f"the loss {loss:.4f} is a spike ({score:.1f} standard deviations above the recent mean)"
    return None
