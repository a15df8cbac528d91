"""The LightningModule: one training step, and what belongs to an optimizer step around it."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torch.nn as nn
from torch import Tensor

from minigpt.config.schema import TrainConfig
from minigpt.data.batch import Batch
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss
from minigpt.training.clock import Clock
from minigpt.training.guard import RollBack, fault_of
from minigpt.training.optimizer import build_optimizer
from minigpt.training.schedule import lr_factor
from minigpt.training.state import RunState


class LanguageModel(L.LightningModule):
    """Trains a GPT.

    Args:
        gpt: the model.
        config: the run's config.
        choices: device, precision and layout.
        total_steps: optimizer steps of the run; None when only max_minutes limits it.
        position: where the run stands.
    """

    def __init__(self, gpt: GPT, config: TrainConfig, choices: Choices, *, total_steps: int | None, position: RunState):
        super().__init__()
        self.gpt = gpt
        self.config = config
        self.choices = choices
        self.total_steps = total_steps
        self.position = position
        self.clock = Clock(position.seconds)
        self.loss_function: Callable[[nn.Module, Tensor, Tensor], Tensor] = next_token_loss  # or its compiled form
        self.micro_losses: list[Tensor] = []  # of the current optimizer step
        self.loss = 0.0  # of the current optimizer step, nats per token
        self.grad_norm = 0.0  # before clipping
        self.lr = 0.0  # that the current step is made with
        self.seconds = position.seconds  # training time used up to the current step, the same on all devices
        self.fault: str | None = None  # why the current step was skipped
        self.on_fault: Callable[[int, str], None] = lambda step, fault: None  # told of each skipped step
        self.row: dict[str, Any] = {}  # the current step's entry in metrics.jsonl; empty when it gets none
        self.stop_reason: str | None = None
        self.requeue = False  # whether the stop asks the queue to run this job again
        self.wishes: Callable[[], list[bool]] = list  # what this process asks for at the end of the step
        self.agreed: list[bool] = []  # what any process asked for

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        with autocast(self.choices.device, self.choices.precision):
            loss = self.loss_function(self.gpt, batch.tokens, batch.targets)
        self.micro_losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self.config.optimizer, self.gpt, precision=self.choices.precision)

    @property
    def progress(self) -> float:
        """How far the run is, 0 to 1, by the limit that is nearest."""
        by_steps = self.position.step / self.total_steps if self.total_steps else 0.0
        minutes = self.config.trainer.max_minutes
        return max(by_steps, self.seconds / (60 * minutes) if minutes else 0.0)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        factor = lr_factor(self.position.step, self.progress, self.total_steps, self.config.schedule)
        self.lr = self.config.optimizer.lr * factor
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        """Clip by the global norm, or skip the step. (Lightning's own clipping refuses fused AdamW with autocast.)

        The norm is known here, on the host, before the update: a gradient that is short enough is not touched at all.

        Raises:
            RollBack: too many bad steps in a row.
        """
        parameters, limit = list(self.gpt.parameters()), self.config.optimizer.grad_clip
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.loss, self.grad_norm = self.share(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        position, guard = self.position, self.config.guard
        self.fault = fault_of(self.loss, self.grad_norm, position.recent_losses, guard)
        if self.fault is None:
            if limit and self.grad_norm > limit:
                torch._foreach_mul_(gradients, limit / self.grad_norm)
            position.bad_steps = 0
            if guard.spike_zscore:
                position.recent_losses = [*position.recent_losses, self.loss][-guard.spike_window :]
            return
        for parameter in parameters:
            parameter.grad = None  # the optimizer passes over parameters without a gradient
        position.bad_steps += 1
        self.on_fault(position.step + 1, self.fault)
        if position.bad_steps > guard.max_skips:
            raise RollBack(position.step + 2 - position.bad_steps, position.step + 1)

    def share(self, grad_norm: Tensor) -> tuple[float, float]:
        """Mean loss and gradient norm of the step, over micro-batches and devices: one wait for the device.

        With several devices the time used and the wishes to stop travel in the same all-reduce: they cost no
        collective and no synchronisation of their own.
        """
        loss = torch.stack(self.micro_losses).mean()
        self.micro_losses.clear()
        measured = torch.stack([loss, grad_norm.to(loss)])
        if self.trainer.world_size == 1:
            self.seconds = self.clock.seconds
            loss_value, norm_value = measured.tolist()
            return loss_value, norm_value
        told = torch.tensor([self.clock.seconds, *self.wishes()], dtype=loss.dtype, device=loss.device)
        together = self.trainer.strategy.reduce(torch.cat([measured, told]), reduce_op="mean")
        loss_value, norm_value, self.seconds, *shares = together.tolist()
        self.agreed = [share > 0 for share in shares]
        return loss_value, norm_value
