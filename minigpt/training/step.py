"""One optimizer step, from its first micro-batch to the save after it, in the order in which it happens.

Lightning's Trainer calls the methods of LanguageModel in the order in which they are written. In between it moves each
micro-batch to the device, divides its loss by their number and calls backward(); under DDP the gradients are averaged
in the backward pass of a step's last micro-batch (no_sync in those before).
"""

import math
import signal
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from minigpt.data.batch import Batch
from minigpt.machine.choices import Choices
from minigpt.machine.memory import shard_count
from minigpt.machine.sharding import begin_micro_batch
from minigpt.machine.torch_setup import LossFunction
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast
from minigpt.model.parts import local
from minigpt.seeds import fold
from minigpt.training.grpo import CheckedQuestion, answered
from minigpt.training.guard import Measurement, StepResult, fault_of, judge, scale, scale_on_device
from minigpt.training.layers import LayerWatch
from minigpt.training.lightning_engine import call_callbacks, publish
from minigpt.training.optimizer import average_weights, lr_factor
from minigpt.training.output import RunLog, live_sample, validate
from minigpt.training.saving import Saving
from minigpt.training.state import Clock, RunState, StopRequest, TrainingJob, is_due, steps_of


class LanguageModel(L.LightningModule):
    """Trains a GPT from the step in `state`, which each step updates.

    `optimizer` has its averages at that step; `loss` (`plain_loss`) is for batches with weights or for those without.
    """

    def __init__(
        self, gpt: GPT, job: TrainingJob, choices: Choices, *, optimizer: Optimizer, state: RunState, loss: LossFunction
    ):
        super().__init__()
        config = job.config
        self.gpt, self.job, self.config, self.choices = gpt, job, config, choices
        self.optimizer, self.state, self.loss_function = optimizer, state, loss
        self.sharded = config.trainer.sharded
        self.total_steps = steps_of(config)  # None if only max_minutes limits the run
        self.clock = Clock(state.seconds)
        self.seconds = state.seconds  # as all ranks know them
        self.layers = LayerWatch(gpt, 0 if self.sharded else config.validate.every_steps)
        self.run_log: RunLog  # both are opened when the training begins (run.py)
        self.saving: Saving
        self.first_micro_batch = state.step * choices.accumulate
        self.micro_batches: list[tuple[Tensor, Tensor | None, float]] = []  # loss, weight, reward; of this step
        # A GPU doesn't wait for the host to read a step's numbers, unless spikes are to be judged before the update.
        self.reads_one_step_late = choices.device == "cuda" and not config.guard.spike_zscore
        self.pending: list[Measurement] = []  # of steps made, oldest first
        self.asked_to_stop = self.callback_asked = False  # by any rank; by a callback of this rank
        self.stop_reason: str | None = None  # signal | max_minutes | patience | callback
        self.requeue = False  # whether the stop asks the queue to run this job again
        self.unsaved_row: dict[str, Any] | None = None  # of a step that has ended, until a save was considered
        self.scaler = torch.amp.GradScaler(choices.device, enabled=choices.precision == "fp16")
        if state.loss_scale:
            saved = {"scale": state.loss_scale, "_growth_tracker": state.loss_scale_steps}
            self.scaler.load_state_dict(self.scaler.state_dict() | saved)

    def configure_model(self) -> None:
        """Leave the weights as they are, whole or sharded (machine/sharding.py). Lightning requires this method."""

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer

    def on_train_start(self) -> None:
        self.job.processes.signals.noted_only = True  # from now on a signal is obeyed at the end of a step
        self.clock.start()
        self.defer_callbacks_stop()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device, non_blocking=True) if isinstance(batch, Batch) else batch

    def training_step(self, batch: Batch | list[CheckedQuestion], batch_idx: int) -> Tensor:
        """Return the loss of a micro-batch. Its random numbers follow from seed, micro-batch and rank alone."""
        seed_device(fold(self.config.seed, self.first_micro_batch + batch_idx, self.trainer.global_rank), self.device)
        if self.sharded:
            last = (batch_idx + 1) % self.choices.accumulate == 0
            begin_micro_batch(self.gpt, last=last, reshard=self.choices.reshard)
        reward = 0.0
        if not isinstance(batch, Batch):  # answered here: Lightning fetches a batch before the previous step is made
            batch, reward = answered(self.gpt, batch, self.job, self.choices)
        loss, weight = self.loss_of(batch)
        self.micro_batches.append((loss.detach(), weight, reward))
        return self.scaler.scale(loss)

    def loss_of(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return loss and weight of a micro-batch, both divided by the number of tokens that a full one has.

        The sum of weighted losses over the sum of weights is the exact mean of a step, even if micro-batches differ in
        weight. One without weights is full and has weight 1, returned as None.
        """
        full, weights = self.choices.micro_batch * self.config.model.block_size, batch.weights
        with autocast(self.choices.device, self.choices.precision):
            if weights is None:
                return self.loss_function(self.gpt, batch.tokens, batch.targets), None
            total = self.loss_function(self.gpt, batch.tokens, batch.targets, weights, batch.documents)
        weight = weights.sum(dtype=total.dtype) if batch.divisor is None else total.new_full((), batch.divisor)
        return total / full, weight / full

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Set the learning rate."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.lr_factor(self.state.step + len(self.pending))

    def lr_factor(self, step: int) -> float:
        """Return the schedule's factor for the step after `step`."""
        minutes = self.config.trainer.max_minutes
        by_steps = step / self.total_steps if self.total_steps else 0.0
        progress = max(by_steps, self.seconds / (60 * minutes) if minutes else 0.0)
        return lr_factor(step, progress, self.total_steps, self.config.schedule)

    def configure_gradient_clipping(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        """Measure the step over all ranks; then clip its gradients, or drop them if the guard finds them bad.

        Lightning's own clipping refuses fused AdamW with autocast.
        """
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)
        parameters, limit = list(self.gpt.parameters()), self.config.optimizer.grad_clip
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        numbers = self.measure(torch.linalg.vector_norm(norms))
        self.scaler.update()  # lower from here on if a gradient overflowed
        lr = self.config.optimizer.lr * self.lr_factor(self.state.step + len(self.pending))
        self.pending.append(Measurement(numbers, lr))
        self.layers.look(self.state.step + len(self.pending), norms)
        if self.reads_one_step_late:
            optimizer.found_inf = scale_on_device(gradients, numbers, limit)  # type: ignore[attr-defined]
            return
        result = self.result_of(self.pending[-1])
        if result.fault is None and not result.overflow and result.weight:
            scale(gradients, result.grad_norm, limit, result.weight)
        else:
            for parameter in parameters:
                parameter.grad = None  # an optimizer skips parameters without a gradient

    def measure(self, grad_norm: Tensor) -> Tensor:
        """Return the step's loss, gradient norm, mean weight, scale and mean reward, over micro-batches and ranks.

        With several ranks, the same all-reduce carries the time used and requests to stop; with sharded weights, also
        the squared gradient norm of each rank's part.
        """
        losses, weights, rewards = zip(*self.micro_batches, strict=True)
        self.micro_batches.clear()
        loss = torch.stack(losses).mean()
        ones = torch.ones_like(loss)
        weight = torch.stack([ones if weight is None else weight for weight in weights]).mean()
        reward = torch.stack([torch.full_like(loss, reward) for reward in rewards]).mean()
        numbers = torch.stack([loss, grad_norm.to(loss), weight, self.scaler.scale(ones), reward])
        ranks, parts = self.trainer.world_size, shard_count(self.config.trainer)
        if ranks > 1:
            if self.sharded:
                numbers[1] = parts * numbers[1] ** 2
            extra = torch.tensor([self.clock.seconds, *map(float, self.request)], pin_memory=loss.is_cuda)
            numbers = torch.cat([numbers, extra.to(loss, non_blocking=True)])
            dist.all_reduce(numbers)
            numbers /= ranks
            if self.sharded:
                numbers[1] = numbers[1].sqrt()
        if ranks > 1 or any(weight is not None for weight in weights):
            numbers[:2] /= numbers[2].clone()
        return numbers

    @property
    def request(self) -> StopRequest:
        """The current request of this rank."""
        minutes, received = self.config.trainer.max_minutes, self.job.processes.signals.received
        out_of_time = minutes is not None and self.clock.seconds >= 60 * minutes
        by_callback = self.callback_asked or self.trainer.should_stop
        return StopRequest(received is not None, received == signal.SIGUSR1, out_of_time, by_callback)

    def result_of(self, measurement: Measurement) -> StepResult:
        """Read a step's numbers on the host; return its result."""
        loss, grad_norm, weight, loss_scale, reward, *extra = measurement.values
        self.seconds, request = self.clock.seconds, self.request
        if extra:
            self.seconds, *asked = extra
            request = StopRequest(*(value > 0 for value in asked))
        overflow = loss_scale > 1 and math.isfinite(loss) and not math.isfinite(grad_norm)
        fault = None
        if weight and not overflow:  # without a learned token the loss 0 / 0 is no fault, and there is no update
            fault = fault_of(loss, grad_norm, self.state.recent_losses, self.config.guard)
        return StepResult(loss, grad_norm, weight, measurement.lr, fault, overflow, request, reward)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Make the update, then all that comes at the end of a step.

        The call to Lightning makes the last micro-batch's training_step and backward(), on_before_optimizer_step,
        configure_gradient_clipping, and the update.
        """
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.layers.measure()
        if (fraction := self.config.optimizer.average_fraction) and self.total_steps:
            average_weights(self.optimizer, self.state.step + len(self.pending), self.total_steps, fraction)
        self.end_steps(at_once=not self.reads_one_step_late)

    def end_steps(self, *, at_once: bool) -> None:
        """End the steps that were made. If numbers are read late, a step ends after the next one was queued.

        It ends immediately if a validation, sample, save or stop needs its weights. All ranks decide alike: if one
        requests a stop, all obey it one step later.
        """
        config, every = self.config, self.config.checkpoint.every_steps
        while self.pending:
            step, newest = self.state.step + 1, len(self.pending) == 1
            wanted = at_once or self.asked_to_stop or step == self.total_steps
            wanted |= is_due(step, config.validate.every_steps, config.samples.every_steps, every)
            wanted |= self.trainer.world_size == 1 and any(self.request)
            if newest and not wanted:
                return
            self.end_step(self.result_of(self.pending.pop(0)), is_newest=newest)

    def end_step(self, result: StepResult, *, is_newest: bool) -> None:
        """Judge a step, then validate, write its row and a sample, and decide whether training ends here.

        `is_newest`: the weights are still those of this step, so it can be validated, sampled and saved.
        """
        config, state, ranks = self.config, self.state, self.trainer.world_size
        judge(self.job, state, result)
        state.step += 1
        self.asked_to_stop = any(result.request)
        request = result.request if is_newest else StopRequest()
        if request.out_of_time:
            self.stop_reason = "max_minutes"
        elif request.stop and state.step != self.total_steps:
            self.stop_reason, self.requeue = "signal", request.requeue

        row: dict[str, Any] = {}
        validates = is_due(state.step, config.validate.every_steps) or self.is_last()
        if validates or state.step == 1 or is_due(state.step, config.logger.every_steps):
            row = self.run_log.row(state.step, result, self.clock.seconds)
            publish(self.trainer, row)  # before the hooks of validation, which publishes its figures
        if validates:
            with self.clock.paused():
                score = validate(self.gpt, self.job, self.choices, state, self.trainer)
                row |= self.layers.columns(result.weight) | score
            if state.patience_over:
                self.stop_reason = "patience"
        if row:
            publish(self.trainer, row)
            self.run_log.write(row)
        elif self.job.run.writes:
            self.run_log.tick(state.step, result, self.clock.seconds)
        samples = config.samples.every_steps and (is_due(state.step, config.samples.every_steps) or self.is_last())
        if samples and (self.job.run.writes or self.sharded):  # sharded weights: all ranks together
            with self.clock.paused():
                self.run_log.write_sample(state.step, live_sample(self.gpt, self.job, step=state.step))

        if self.stop_reason is None and (self.trainer.should_stop if ranks == 1 else result.request.by_callback):
            self.stop_reason = "callback"
        self.unsaved_row = row if is_newest else None
        self.trainer.should_stop = self.stop_reason is not None

    def is_last(self) -> bool:
        """Return whether the run is complete: all steps made, or ended for good by a limit or patience."""
        return self.state.step == self.total_steps or self.stop_reason in ("max_minutes", "patience")

    def on_train_batch_end(self, *_: Any) -> None:
        """Save, if a save is due. Lightning calls this after the callbacks, so their state is that of the step."""
        row, self.unsaved_row = self.unsaved_row, None
        if row is not None:
            improved = self.state.best_step == self.state.step and row.get("val/loss") is not None
            ends = self.stop_reason is not None or self.is_last()
            if ends or improved or is_due(self.state.step, self.config.checkpoint.every_steps):
                self.save(row.get("val/loss"), last=ends)
            self.saving.collect(wait=False)
        self.defer_callbacks_stop()

    def save(self, val_loss: float | None, *, last: bool) -> None:
        """Save a checkpoint: rank 0, or all ranks together where weights are sharded."""
        state, minutes, writes = self.state, self.config.trainer.max_minutes, self.job.run.writes
        if writes or self.sharded:
            with self.clock.paused():
                if writes:
                    call_callbacks(self.trainer, "on_save_checkpoint", {"global_step": state.step})
                if minutes:  # another rank's clock may have ended the run
                    state.seconds = max(self.clock.seconds, 60.0 * minutes * (self.stop_reason == "max_minutes"))
                if self.scaler.is_enabled():
                    state.loss_scale = self.scaler.get_scale()
                    state.loss_scale_steps = self.scaler.state_dict()["_growth_tracker"]
                self.saving.save(state, val_loss, last=last)

    def defer_callbacks_stop(self) -> None:
        """Send a callback's request to stop with the next step's all-reduce, so that all ranks stop together.

        Lightning calls this after the callbacks and before it looks at should_stop.
        """
        if self.trainer.world_size > 1 and self.stop_reason is None:
            self.callback_asked |= self.trainer.should_stop
            self.trainer.should_stop = False

    def on_train_end(self) -> None:
        """End the remaining steps if a callback ends the training."""
        self.end_steps(at_once=True)
        self.on_train_batch_end()
        if self.stop_reason is None and not self.is_last():
            self.stop_reason = "callback"
            self.save(None, last=True)


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on `device` draws from.

    Not `torch.manual_seed`: without CUDA in use it keeps a stack trace of every call, a millisecond a step and memory
    that grows for ever.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
