"""Training as measured: all of train.py, and the shortest loop around the same model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import lightning as L
import torch
from torch import Tensor

from minigpt.config.convert import from_dict
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.prepare import Prepared, prepare
from minigpt.machine.choices import Choices, choose
from minigpt.machine.hardware import find_device
from minigpt.machine.memory import keep_freed_memory, try_loss
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast
from minigpt.training.optimizer import build_optimizer
from minigpt.training.run import train
from minigpt.training.seeding import fold


class Stopwatch(L.Callback):
    """Notes the moment just before each optimizer step.

    Args:
        warm_up: steps that do not count.
    """

    def __init__(self, warm_up: int):
        self.warm_up = warm_up
        self.moments: list[float] = []
        self.left_out: list[tuple[float, float]] = []  # (when, seconds) of each validation
        self.first_step_at = 0.0  # time.time()

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.tick()

    def on_validation_start(self, *_: Any) -> None:
        self.left_out.append((time.perf_counter(), 0.0))

    def on_validation_end(self, *_: Any) -> None:
        began = self.left_out.pop()[0]
        self.left_out.append((began, time.perf_counter() - began))

    def tick(self) -> None:
        """Note that a step's gradients are there."""
        self.first_step_at = self.first_step_at or time.time()
        self.moments.append(time.perf_counter())

    def result(self) -> dict[str, Any]:
        """Milliseconds per step: the wall time from the end of the warm-up to the last moment, less validations."""
        start, end = self.moments[self.warm_up], self.moments[-1]
        inside = [seconds for when, seconds in self.left_out if start <= when <= end]
        steps = len(self.moments) - 1 - self.warm_up
        milliseconds = 1e3 * (end - start - sum(inside)) / steps
        return {"ms": milliseconds, "steps": steps, "first_step_at": self.first_step_at, "left_out": inside}


def train_py(task: dict[str, Any]) -> dict[str, Any]:
    """Time minigpt.training.run.train() with all that a user's run has.

    Args:
        task: config (with run.dir), warm_up.
    """
    stopwatch = Stopwatch(task["warm_up"])
    code = train(from_dict(TrainConfig, task["config"]), callbacks=[stopwatch])
    assert code == 0, f"train() ended with {code}"
    return stopwatch.result()


def probe(task: dict[str, Any]) -> dict[str, Any]:
    """What a run of this config would choose on this machine, and its vocabulary."""
    config, prepared, choices = settle(task)
    return asdict(choices) | {"name": find_device(config).name, "vocab_size": prepared.tokenizer.vocab_size}


def settle(task: dict[str, Any]) -> tuple[TrainConfig, Prepared, Choices]:
    """The task's config, tokens and automatic choices as train() makes them, and the process set up as it does."""
    config = from_dict(TrainConfig, task["config"])
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    choices = choose(config, find_device(config), prepared.tokenizer.vocab_size)
    torch.set_num_threads(choices.threads)
    torch.set_float32_matmul_precision(choices.float32_products)
    keep_freed_memory()
    return config, prepared, choices


def new_model(config: TrainConfig, choices: Choices, vocab_size: int) -> GPT:
    """The model with the weights that a run of this config begins with, on its device."""
    torch.manual_seed(fold(config.seed))
    gpt = GPT(config.model, vocab_size, kernel=choices.attention_kernel)
    return (gpt.double() if choices.precision == "fp64" else gpt).to(choices.device).train()


def batches_of(config: TrainConfig, prepared: Prepared, choices: Choices, start_step: int = 0) -> MicroBatches:
    """The run's micro-batches, from a step on."""
    return MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        start_step=start_step,
    )


def bare(task: dict[str, Any]) -> dict[str, Any]:
    """Time our model in the shortest loop, without Lightning, callback, row or save; the task is train_py's."""
    config, prepared, choices = settle(task)
    gpt = new_model(config, choices, prepared.tokenizer.vocab_size)
    first = batches_of(config, prepared, choices)[0].to(choices.device)
    choices, loss_function = try_loss(gpt, choices, lambda size: (first.tokens, first.targets))

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        with autocast(choices.device, choices.precision):
            return loss_function(gpt, tokens, targets)

    stopwatch = Stopwatch(task["warm_up"])
    shortest_loop(config, prepared, choices, loss_of, build_optimizer(config.optimizer, gpt), stopwatch=stopwatch)
    return stopwatch.result()


def shortest_loop(
    config: TrainConfig,
    prepared: Prepared,
    choices: Choices,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    stopwatch: Stopwatch,
    rates: Sequence[float] = (),
) -> list[float]:
    """Train for the config's steps on its batches, with nothing around a step.

    Args:
        config: says how many steps and where to clip.
        prepared: the tokens.
        choices: the device and the micro-batches.
        loss_of: (tokens, targets) -> mean loss.
        optimizer: of the model inside `loss_of`.
        stopwatch: told of each step.
        rates: learning rate of each step; none: the optimizer's.

    Returns:
        The loss of each step.
    """
    batches = batches_of(config, prepared, choices)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    total, losses = config.trainer.max_steps or 0, []
    for step in range(total):
        loss = torch.zeros((), device=choices.device)
        for part in range(choices.accumulate):
            batch = batches[step * choices.accumulate + part].to(choices.device)
            share = loss_of(batch.tokens, batch.targets) / choices.accumulate
            share.backward()
            loss = loss + share.detach()
        if config.optimizer.grad_clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.grad_clip)
        if choices.device == "cuda" and step in (stopwatch.warm_up, total - 1):
            torch.cuda.synchronize()
        stopwatch.tick()
        for group in optimizer.param_groups if rates else []:
            group["lr"] = rates[step]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return torch.stack(losses).tolist()
