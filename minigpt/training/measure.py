"""The numbers of a step: from the device to the host, and its row in metrics.jsonl."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minigpt.training.stopping import StopRequest


class Measurement:
    """The numbers of a step on their way from the device to the host.

    Args:
        numbers: loss, gradient norm, mean weight of a token, scale of the loss; with several ranks also seconds and
            requests to stop.
        lr: learning rate of the step.
    """

    def __init__(self, numbers: Tensor, lr: float):
        self.lr = lr
        self.numbers = numbers
        self.read_numbers: list[float] = []
        self.arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:  # the device goes on while they are copied
            self.numbers = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def read(self) -> list[float]:
        """Return the numbers; waits for the device if they are not there yet."""
        if not self.read_numbers:
            if self.arrived is not None:
                self.arrived.synchronize()
            self.read_numbers = self.numbers.tolist()
        return self.read_numbers


@dataclass(frozen=True)
class StepResult:
    """What an optimizer step came to, over all its micro-batches and ranks."""

    loss: float  # nats per token
    grad_norm: float  # before clipping
    weight: float  # mean over the tokens; 1 without weights
    lr: float
    fault: str | None  # why it was skipped
    overflow: bool  # fp16: skipped because a scaled gradient overflowed; the scale is lower from then on
    request: StopRequest  # of any rank


class Meter:
    """Makes the rows: loss, gradient norm, learning rate and speed.

    Args:
        batch_tokens: tokens of an optimizer step.
        flops_per_token: forward and backward FLOPs.
        peak: the devices' FLOP/s together; None when unknown.
    """

    def __init__(self, batch_tokens: int, flops_per_token: float, peak: float | None):
        self.batch_tokens = batch_tokens
        self.flops_per_token = flops_per_token
        self.peak = peak
        self.last_step: int | None = None
        self.last_seconds = 0.0

    def row(self, step: int, result: StepResult, seconds: float) -> dict[str, Any]:
        """Return the row of a step; its speed is that since the row before."""
        speed = None
        if self.last_step is not None and seconds > self.last_seconds:
            speed = (step - self.last_step) * self.batch_tokens / (seconds - self.last_seconds)
        self.last_step, self.last_seconds = step, seconds
        return {
            "step": step,
            "tokens": step * self.batch_tokens,
            "train/loss": result.loss if math.isfinite(result.loss) else None,
            "train/grad_norm": result.grad_norm if math.isfinite(result.grad_norm) else None,
            "lr": result.lr,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(speed, 1) if speed else None,
            "mfu": round(speed * self.flops_per_token / self.peak, 4) if speed and self.peak else None,
        }
