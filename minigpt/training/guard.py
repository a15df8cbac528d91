"""The guard before the update: a loss or gradient that is not finite, or an outlier, never reaches the weights.

A bad step is skipped: its gradients are dropped (not multiplied by zero, which keeps a NaN a NaN). After too many in a
row the run goes back to the last good checkpoint and skips the bad batches for good; after too many returns it ends.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.config.schema import GuardConfig
from minigpt.data.order import batch_of_step
from minigpt.screen import tell
from minigpt.training.state import RunState, StopRequest, TrainingJob


class Measurement:
    """The numbers of a step on their way from the device, which does not wait, to the host.

    They are loss, gradient norm, mean weight of a token, scale of the loss, mean reward; with several ranks also
    seconds and requests to stop.
    """

    def __init__(self, numbers: Tensor, lr: float):
        self.numbers, self.lr = numbers, lr
        self.arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self.numbers = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    @property
    def values(self) -> list[float]:
        """The numbers on the host; waits for the device if they are not there yet."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


@dataclass(frozen=True)
class StepResult:
    """The result of an optimizer step, over all its micro-batches and ranks."""

    loss: float  # nats per token
    grad_norm: float  # before clipping
    weight: float  # mean over the tokens; 1 without weights
    lr: float
    fault: str | None  # why it was skipped
    overflow: bool  # fp16: skipped because a scaled gradient overflowed; the scale is lower from then on
    request: StopRequest  # of any rank
    reward: float = 0.0  # mean of the answers, where a reward is learned


class RollBack(Exception):
    """Raised with (first, last) to go back to before the first step and leave out the batches of these steps."""


def fault_of(loss: float, grad_norm: float, window: Sequence[float], config: GuardConfig) -> str | None:
    """Return why a step must be skipped, or None; `window` holds the losses of recent good steps."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(grad_norm):
        return f"the gradient norm is {grad_norm}"
    if config.spike_zscore and len(window) >= 16:
        deviation = statistics.stdev(window)
        score = (loss - statistics.fmean(window)) / deviation if deviation else 0.0
        if score > config.spike_zscore:
            return f"the loss {loss:.4f} is a spike ({score:.1f} standard deviations above the recent mean)"
    return None


def judge(job: TrainingJob, state: RunState, result: StepResult) -> None:
    """Count bad steps in a row and report a skipped one; raise RollBack if there are too many."""
    rules, run, step = job.config.guard, job.run, state.step + 1
    if result.overflow:
        run.event("overflow", step=step)
    if result.fault is None:
        state.bad_steps = 0
        if rules.spike_zscore and result.weight:
            state.recent_losses = [*state.recent_losses, result.loss][-rules.spike_window :]
        return
    state.bad_steps += 1
    if run.writes:
        batch = batch_of_step(step - 1, run.skipped_batches())
        run.event("skipped", step=step, batch=batch, reason=result.fault)
        tell(f"step {step:,} skipped: {result.fault}; the weights are as they were (batch {batch:,})")
    if state.bad_steps > rules.max_skips:
        raise RollBack(step + 1 - state.bad_steps, step)


def scale(gradients: list[Tensor], grad_norm: float, limit: float, weight: float) -> None:
    """Divide gradients by the step's mean weight and shorten them to `limit`; a factor of 1 touches none of them."""
    factor = (limit / grad_norm if limit and grad_norm > limit else 1.0) / weight
    if factor != 1.0:
        torch._foreach_mul_(gradients, factor)


def scale_on_device(gradients: list[Tensor], numbers: Tensor, limit: float) -> Tensor:
    """Do what `scale` does without the host, which reads loss, norm and weight (`numbers`) one step late.

    Returns an optimizer's `found_inf`: 1.0 for a step that must be skipped.
    """
    loss, grad_norm, weight = numbers[:3].double()
    factor = torch.where(grad_norm > limit, limit / grad_norm, 1.0) if limit else torch.ones_like(grad_norm)
    torch._foreach_mul_(gradients, (factor / weight).to(gradients[0].dtype))
    return (~(loss.isfinite() & grad_norm.isfinite())).float()
