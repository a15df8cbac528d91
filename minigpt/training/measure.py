"""The numbers of a step: from the device to the host, its row in metrics.jsonl, the loss on the validation split."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.config.schema import TrainConfig
from minigpt.data.shards import TokenSplit
from minigpt.machine.choices import Choices
from minigpt.model.evaluate import Score, evaluate
from minigpt.model.gpt import GPT
from minigpt.training.stopping import StopRequest


class Measurement:
    """The numbers of a step on their way from the device to the host.

    Args:
        numbers: loss, gradient norm, mean weight of a token; with several ranks also seconds and requests to stop.
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


class Validation:
    """Scores a model on the whole validation split.

    Args:
        split: the validation tokens.
        first_token_bytes: text bytes of the split's first token.
        config: of the run.
        choices: of the run.
    """

    def __init__(self, split: TokenSplit, first_token_bytes: int, config: TrainConfig, choices: Choices):
        self.split = split
        self.first_token_bytes = first_token_bytes
        self.config = config
        self.choices = choices

    def score(self, gpt: GPT, device: torch.device, *, rank: int, world_size: int) -> Score:
        """Return the whole split's score, shared out over the ranks."""
        score = evaluate(
            gpt,
            self.split,
            block_size=self.config.model.block_size,
            batch=self.choices.validation_batch,
            device=device,
            precision=self.choices.precision,
            first_token_bytes=self.first_token_bytes,
            rank=rank,
            world_size=world_size,
        )
        if world_size == 1:
            return score
        dtype = torch.float64 if device.type != "mps" else torch.float32
        sums = torch.tensor([score.nats, score.tokens], dtype=dtype, device=device)
        dist.all_reduce(sums)
        return Score(float(sums[0]), int(sums[1]), score.bytes)


def validation_columns(score: Score) -> dict[str, float | None]:
    """The columns that a validation adds to its step's row; null where the loss is not finite."""
    columns = {"val/loss": score.loss, "val/perplexity": score.perplexity, "val/bits_per_byte": score.bits_per_byte}
    return dict(columns) if math.isfinite(score.loss) else dict.fromkeys(columns)
