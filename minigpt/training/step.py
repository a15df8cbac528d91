"""One optimizer step, from its first micro-batch to the save after it, in the order in which it happens.

Lightning's Trainer calls the methods of LanguageModel in the order in which they stand here. In between it moves each
micro-batch to the device, divides its loss by their number and calls backward(); under DDP the gradients are averaged
in the backward pass of a step's last micro-batch (no_sync in those before). After the update, StepEnd is called.
"""

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.config.schema import GuardConfig, TrainConfig
from minigpt.data.batch import Batch
from minigpt.data.order import batch_of_step
from minigpt.data.prepared import Prepared
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices
from minigpt.machine.sharding import Layout, begin_micro_batch, reshards
from minigpt.model.counting import flops_per_token
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss, weighted_loss_sum
from minigpt.model.parts import local
from minigpt.ranks.signals import Signals
from minigpt.rundir.run_directory import RunDirectory
from minigpt.splitmix import fold
from minigpt.training.ending import StopRequest, StopRequests
from minigpt.training.grpo import Answerer, Question
from minigpt.training.guard import Measurement, RollBack, StepResult, fault_of, scale, scale_on_device
from minigpt.training.optimizer import lr_factor
from minigpt.training.outputs import Meter, Outputs
from minigpt.training.run_state import Clock, RunState, out_of_patience, steps_of


class LanguageModel(L.LightningModule):
    """Trains a GPT.

    Args:
        gpt: the model.
        config: the run's config.
        choices: device, precision and layout.
        optimizer: over the model's parameters, with its state at the run's current step.
        state: where the run stands; each step changes it.
    """

    step_end: "StepEnd"  # set before the training begins

    def __init__(
        self, gpt: GPT, config: TrainConfig, choices: Choices, *, optimizer: torch.optim.Optimizer, state: RunState
    ):
        super().__init__()
        self.gpt = gpt
        self.config = config
        self.choices = choices
        self.optimizer = optimizer
        self.state = state
        self.layout: Layout | None = None  # of the weights, where they are sharded
        self.total_steps = steps_of(config)  # None when only max_minutes limits the run
        self.clock = Clock(state.seconds)
        self.compiled_loss: Callable[..., Tensor] | None = None  # of batches with weights, or of batches without
        self.answer: Answerer | None = None  # makes a batch of questions, where a reward is learned
        self.first_micro_batch = state.step * choices.accumulate
        self.micro_losses: list[Tensor] = []  # of the current step
        self.micro_weights: list[Tensor] = []
        self.micro_rewards: list[Tensor] = []
        # Whether the host reads a step's numbers only when the next step's work is queued: not where it judges spikes,
        # which it must do before the update.
        self.late = choices.device == "cuda" and not config.guard.spike_zscore
        self.unread: list[Measurement] = []  # of steps made, oldest first
        self.callback_asked = False  # whether a callback of this rank has asked for a stop
        self._seconds = state.seconds
        self.scaler = torch.amp.GradScaler(choices.device, enabled=choices.precision == "fp16")
        if state.loss_scale:
            saved = {"scale": state.loss_scale, "_growth_tracker": state.loss_scale_steps}
            self.scaler.load_state_dict(self.scaler.state_dict() | saved)

    def configure_model(self) -> None:
        """Leave the weights as they are, whole or sharded (machine/sharding.py). Lightning requires this method."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device, non_blocking=True) if isinstance(batch, Batch) else batch

    def training_step(self, batch: Batch | list[Question], batch_idx: int) -> Tensor:
        """Return the loss of a micro-batch. Its random numbers follow from seed, micro-batch and rank alone."""
        seed = fold(self.config.seed, self.first_micro_batch + batch_idx, self.trainer.global_rank)
        seed_device(seed, self.device)
        if self.layout is not None:
            last = (batch_idx + 1) % self.choices.accumulate == 0
            begin_micro_batch(self.gpt, last=last, reshard=reshards(self.config.trainer, self.choices))
        if not isinstance(batch, Batch):  # answered here: Lightning fetches a batch before the previous step is made
            assert self.answer is not None
            batch, reward = self.answer(self.gpt, batch)
            self.micro_rewards.append(reward)
        loss, weight = self.loss_of(batch)
        self.micro_losses.append(loss.detach())
        if weight is not None:
            self.micro_weights.append(weight)
        return self.scaler.scale(loss)

    def loss_of(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return loss and weight of a micro-batch, both divided by the number of tokens that a full one has.

        Sums of weighted losses and of weights give the exact mean of a step, however its weight is spread. A full
        micro-batch without weights has the weight 1, here None, and its loss is the mean.
        """
        full, chunk = self.choices.micro_batch * self.config.model.block_size, self.choices.loss_chunk
        with autocast(self.choices.device, self.choices.precision):
            if batch.weights is None and batch.tokens.numel() == full:
                loss = self.compiled_loss or partial(next_token_loss, chunk=chunk)
                return loss(self.gpt, batch.tokens, batch.targets), None
            weights = torch.ones_like(batch.tokens, dtype=torch.float32) if batch.weights is None else batch.weights
            compiled = None if batch.weights is None else self.compiled_loss
            total = (compiled or partial(weighted_loss_sum, chunk=chunk))(
                self.gpt, batch.tokens, batch.targets, weights, batch.documents
            )
        weight = weights.sum(dtype=total.dtype) if batch.divisor is None else total.new_tensor(batch.divisor)
        return total / full, weight / full

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.lr_factor()

    def lr_factor(self) -> float:
        """Return the schedule's factor for the step that is being made."""
        step = self.state.step + len(self.unread)
        minutes = self.config.trainer.max_minutes
        by_steps = step / self.total_steps if self.total_steps else 0.0
        progress = max(by_steps, self._seconds / (60 * minutes) if minutes else 0.0)
        return lr_factor(step, progress, self.total_steps, self.config.schedule)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        """Measure the step over all ranks; then clip its gradients, or drop them if the guard finds them bad.

        Lightning's own clipping refuses fused AdamW with autocast. On a GPU all this is decided on the device;
        elsewhere the host knows the norm, and a gradient that is short enough is not touched at all.
        """
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)
        parameters, limit = list(self.gpt.parameters()), self.config.optimizer.grad_clip
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        numbers = self.measure(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        self.scaler.update()  # lower from here on if a gradient overflowed
        self.unread.append(Measurement(numbers, self.config.optimizer.lr * self.lr_factor()))
        if self.late:
            optimizer.found_inf = scale_on_device(gradients, numbers, limit)  # type: ignore[attr-defined]
            return
        result = self.result_of(self.unread[-1])
        if result.fault is None and not result.overflow and result.weight:
            scale(gradients, result.grad_norm, limit, result.weight)
        else:
            for parameter in parameters:
                parameter.grad = None  # an optimizer passes over parameters without one

    def measure(self, grad_norm: Tensor) -> Tensor:
        """Return the step's loss, gradient norm, mean weight and mean reward, over micro-batches and ranks.

        With several ranks the time used and the requests to stop travel in the same all-reduce; with sharded weights,
        so does the squared norm of each rank's part.
        """
        loss = torch.stack(self.micro_losses).mean()
        weights = self.micro_weights + [torch.ones_like(loss)] * (len(self.micro_losses) - len(self.micro_weights))
        one = torch.ones_like(loss)
        reward = torch.stack(self.micro_rewards or [torch.zeros_like(loss)]).mean().to(loss)
        mean_weight = torch.stack(weights).mean()
        numbers = torch.stack([loss, grad_norm.to(loss), mean_weight, self.scaler.scale(one), reward])
        weighted = bool(self.micro_weights)
        self.micro_losses.clear()
        self.micro_weights.clear()
        self.micro_rewards.clear()
        world_size, parts = self.trainer.world_size, self.layout.parts if self.layout else 0
        if world_size > 1:
            if parts:
                numbers[1] = parts * numbers[1] ** 2
            extra = torch.tensor([self.clock.seconds, *map(float, astuple(self.request))], pin_memory=loss.is_cuda)
            numbers = torch.cat([numbers, extra.to(loss, non_blocking=True)])
            dist.all_reduce(numbers)
            numbers /= world_size
            if parts:
                numbers[1] = numbers[1].sqrt()
        if weighted or world_size > 1:
            numbers[:2] /= numbers[2].clone()
        return numbers

    def result_of(self, measurement: Measurement) -> StepResult:
        """Return a step's result, as the host reads it."""
        loss, grad_norm, weight, loss_scale, reward, *extra = measurement.values
        if extra:
            self._seconds, *asked = extra
            request = StopRequest(*(each > 0 for each in asked))
        else:
            self._seconds, request = self.clock.seconds, self.request
        overflow = loss_scale > 1 and math.isfinite(loss) and not math.isfinite(grad_norm)
        # If no token of a batch is learned, the mean is 0 / 0: the step makes no update, and it is no fault.
        fault = (
            None if overflow or not weight else fault_of(loss, grad_norm, self.state.recent_losses, self.config.guard)
        )
        return StepResult(loss, grad_norm, weight, measurement.lr, fault, overflow, request, reward)

    @property
    def request(self) -> StopRequest:
        """What this process asks for now."""
        asked = self.callback_asked or self.trainer.should_stop
        return replace(self.step_end.requests.now(self.clock.seconds), by_callback=asked)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Make the update, then all that comes at the end of a step.

        The call to Lightning makes the last micro-batch's training_step and backward(), on_before_optimizer_step,
        configure_gradient_clipping, and the update.
        """
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.end_steps(at_once=not self.late)

    def end_steps(self, *, at_once: bool) -> None:
        """End the steps that were made; if `late`, a step with no more to do than its row ends after the next one."""
        while self.unread:
            newest = len(self.unread) == 1
            if newest and not at_once and not self.step_end.has_more_to_do(self, self.state.step + 1):
                return
            result = self.result_of(self.unread.pop(0))
            self.step_end(self, result, is_newest=newest)

    def on_train_start(self) -> None:
        self.step_end.begin(self)
        self.defer_callbacks_stop()

    def on_train_batch_end(self, *_: Any) -> None:
        """Save, if a save is due. Lightning calls this after the callbacks, so their state is that of the step."""
        self.step_end.save(self)
        self.defer_callbacks_stop()

    def defer_callbacks_stop(self) -> None:
        """Defer a stop that a callback of this rank asks for to the next step's all-reduce, so that all ranks stop.

        Lightning calls this after the callbacks and before it looks at should_stop.
        """
        if self.trainer.world_size > 1 and self.step_end.stop_reason is None:
            self.callback_asked |= self.trainer.should_stop
            self.trainer.should_stop = False

    def on_train_epoch_start(self) -> None:
        """Refuse a second epoch: the batches have no end, and Lightning would give them from the first one again.

        Raises:
            UserFault: a second epoch begins.
        """
        if self.trainer.current_epoch:
            raise UserFault(
                f"a callback let a StopIteration pass at step {self.state.step:,}, as next() raises it, and Lightning "
                "takes that for the end of an epoch. Mend the callback; the same command goes on from the last "
                "checkpoint"
            )

    def on_train_end(self) -> None:
        self.end_steps(at_once=True)  # steps may be left when a callback ends the training
        self.step_end.save(self)
        self.step_end.end(self)


class StepEnd:
    """What happens between one optimizer step and the next: `__call__`, from top to bottom, then `save`.

    Args:
        module: the model in training.
        run: its directory; only rank 0 writes there.
        prepared: its tokens.
        signals: that this process has received.
        peak: FLOP/s of all devices together; None when unknown.
    """

    def __init__(
        self, module: LanguageModel, run: RunDirectory, prepared: Prepared, signals: Signals, peak: float | None
    ):
        config = module.config
        self.run = run
        self.outputs = Outputs(module, run, prepared)
        self.requests = StopRequests(signals, run.path / "STOP" if run.writes else None, config.trainer.max_minutes)
        peak = peak if config.adapter.name == "none" else None  # FLOPs that frozen weights save aren't counted
        flops = flops_per_token(config.model, prepared.tokenizer.vocab_size) if peak else 0.0
        self.meter = Meter(config.batch_tokens, flops, peak)
        self.stop_reason: str | None = None  # signal | max_minutes | patience | callback
        self.requeue = False  # whether the stop asks the queue to run this job again
        self.asked_to_stop = False  # by any rank
        self.unsaved_row: dict[str, Any] | None = None  # of a step that has ended, until save() has looked at it

    def begin(self, module: LanguageModel) -> None:
        """Get ready for the first step: from here on a signal waits for the end of a step."""
        self.requests.signals.noted_only = True
        if self.run.writes or module.layout is not None:
            self.outputs.saving.start(module.gpt, module.state.step, module.total_steps)
        module.clock.start()

    def end(self, module: LanguageModel) -> None:
        """Save if a callback asked for the stop after the last step was saved."""
        if self.stop_reason is None and not self.is_last(module):
            self.stop_reason = "callback"
            self.outputs.save(module, {}, due=True, last=True)

    def has_more_to_do(self, module: LanguageModel, step: int) -> bool:
        """Return whether a step needs the weights as it leaves them: for a validation, a sample, a save or a stop.

        All ranks return the same; a stop that another rank has asked for is known here one step later than there.
        """
        config = module.config
        wanted = self.asked_to_stop
        if module.trainer.world_size == 1:
            wanted |= any(astuple(module.request))
        every = (config.validate.every_steps, config.samples.every_steps, config.checkpoint.every_steps)
        return wanted or step == module.total_steps or is_due(step, *every)

    def __call__(self, module: LanguageModel, result: StepResult, *, is_newest: bool) -> None:
        """End a step.

        Args:
            module: the model, its config and state.
            result: of the step.
            is_newest: whether the weights are still those of this step, so that it may have more than a row.

        Raises:
            RollBack: too many bad steps in a row.
        """
        config, state = module.config, module.state
        self.judge(state, result, config.guard)
        state.step += 1
        self.asked_to_stop = any(astuple(result.request))
        if is_newest:
            self.obey(result.request, is_last=state.step == module.total_steps)

        row: dict[str, Any] = {}
        logged = state.step == 1 or is_due(state.step, config.logger.every_steps, config.validate.every_steps)
        if logged or self.is_last(module):
            row = self.meter.row(state.step, result, module.clock.seconds)
            if module.answer is not None:  # then the loss is about 0, whatever is learned
                row |= {"train/loss": None, "train/reward": result.reward}
        if is_due(state.step, config.validate.every_steps) or self.is_last(module):
            row |= self.outputs.validate(module)
            state.patience_over = row["val/loss"] is not None and out_of_patience(state, config)
            if state.patience_over:
                self.stop_reason = "patience"
        if row:
            self.outputs.write(module.trainer, row)
        if config.samples.every_steps and (is_due(state.step, config.samples.every_steps) or self.is_last(module)):
            self.outputs.sample(module)
        alone = module.trainer.world_size == 1
        if self.stop_reason is None and (module.trainer.should_stop if alone else result.request.by_callback):
            self.stop_reason = "callback"
        self.unsaved_row = row if is_newest else None
        module.trainer.should_stop = self.stop_reason is not None

    def save(self, module: LanguageModel) -> None:
        """Save the step that has just ended, if a checkpoint is due."""
        row, self.unsaved_row = self.unsaved_row, None
        if row is None:
            return
        state = module.state
        improved = state.best_step == state.step and row.get("val/loss") is not None
        due = improved or is_due(state.step, module.config.checkpoint.every_steps)
        last = self.stop_reason is not None or self.is_last(module)
        self.outputs.save(module, row, due=due, last=last)

    def judge(self, state: RunState, result: StepResult, rules: GuardConfig) -> None:
        """Count bad steps in a row, and print that one was skipped.

        Raises:
            RollBack: there are too many.
        """
        if result.overflow:
            self.run.event("overflow", step=state.step + 1)
        if result.fault is None:
            state.bad_steps = 0
            if rules.spike_zscore and result.weight:
                state.recent_losses = [*state.recent_losses, result.loss][-rules.spike_window :]
            return
        state.bad_steps += 1
        step = state.step + 1
        batch = batch_of_step(step - 1, self.run.skipped_batches() if self.run.writes else [])  # said by rank 0 alone
        self.run.event("skipped", step=step, batch=batch, reason=result.fault)
        if self.run.writes:
            self.outputs.screen.print(
                f"step {step:,} skipped: {result.fault}; the weights are as they were (batch {batch:,})"
            )
        if state.bad_steps > rules.max_skips:
            raise RollBack(step + 1 - state.bad_steps, step)

    def obey(self, request: StopRequest, *, is_last: bool) -> None:
        """Decide whether the run ends after this step."""
        if request.stop:
            self.requests.obeyed()  # at the last step, too: the file is not for a longer run
        if request.out_of_time:
            self.stop_reason = "max_minutes"
        elif request.stop and not is_last:
            self.stop_reason = "signal"
            self.requeue = request.requeue

    def is_last(self, module: LanguageModel) -> bool:
        """Return whether the run is complete: all steps made, or ended for good by a limit or patience."""
        return module.state.step == module.total_steps or self.stop_reason in ("max_minutes", "patience")


def is_due(step: int, *every_steps: int) -> bool:
    """Return whether something that is done every `every_steps` steps is due at `step`; 0 = never."""
    return any(every > 0 and step % every == 0 for every in every_steps)


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
