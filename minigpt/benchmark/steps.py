"""Training as measured: all of train.py, and the shortest loop around the same model."""

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from minigpt.checkpoint.pack import STATE, to_json
from minigpt.checkpoint.store import MANIFEST, latest_usable, write_checkpoint
from minigpt.config.convert import from_dict
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.prepare import Prepared, prepare
from minigpt.machine.choices import Choices, choose
from minigpt.machine.compiling import compiled_loss
from minigpt.machine.hardware import find_device
from minigpt.machine.memory import keep_freed_memory
from minigpt.model.counting import flops_per_token
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss
from minigpt.training.optimizer import build_optimizer
from minigpt.training.run import train
from minigpt.training.seeding import fold


class Stopwatch(L.Callback):
    """Notes the moment just before each optimizer step.

    Args:
        warm_up: steps that do not count.
        memory_every: steps between readings of the process's memory; 0: none.
    """

    def __init__(self, warm_up: int, memory_every: int = 0):
        self.warm_up = warm_up
        self.memory_every = memory_every
        self.memory: list[tuple[int, float]] = []  # (steps done, peak MB so far)
        self.moments: list[float] = []
        self.left_out: list[tuple[float, float]] = []  # (when, seconds) of each validation
        self.vocab_size = 0
        self.first_step_at = 0.0  # time.time()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.vocab_size = pl_module.gpt.vocab_size
        self.tick()

    def on_validation_start(self, *_: Any) -> None:
        self.left_out.append((time.perf_counter(), 0.0))

    def on_validation_end(self, *_: Any) -> None:
        began = self.left_out.pop()[0]
        self.left_out.append((began, time.perf_counter() - began))

    def tick(self) -> None:
        """Note that a step's gradients are there."""
        self.first_step_at = self.first_step_at or time.time()
        if self.memory_every and len(self.moments) % self.memory_every == 0:
            self.memory.append((len(self.moments), peak_mb()))
        self.moments.append(time.perf_counter())

    def result(self) -> dict[str, Any]:
        """Milliseconds per step: the wall time from the end of the warm-up to the last moment, less validations."""
        start, end = self.moments[self.warm_up], self.moments[-1]
        inside = [seconds for when, seconds in self.left_out if start <= when <= end]
        steps = len(self.moments) - 1 - self.warm_up
        facts = {"steps": steps, "first_step_at": self.first_step_at, "memory": self.memory}
        return {"ms": 1e3 * (end - start - sum(inside)) / steps, "left_out": inside, **facts}


def peak_mb() -> float:
    """The most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def train_py(task: dict[str, Any]) -> dict[str, Any]:
    """Time minigpt.training.run.train() with all that a user's run has.

    Args:
        task: config (with run.dir), warm_up, memory_every if memory is wanted, and start_at: the step that the run
            continues at, without having made the steps before it.

    Returns:
        See `Stopwatch.result`, batch_tokens and flops_per_token.
    """
    config = from_dict(TrainConfig, task["config"])
    began = {}
    if start := task.get("start_at", 0):
        begin_at(config, start)
        began = {"began": time.time()}  # of the run that continues
    stopwatch = Stopwatch(task["warm_up"], task.get("memory_every", 0))
    code = train(config, callbacks=[stopwatch])
    assert code == 0, f"train() ended with {code}"
    flops = flops_per_token(config.model, stopwatch.vocab_size)
    facts = {"batch_tokens": config.batch_tokens, "flops_per_token": flops}
    return stopwatch.result() | facts | began


def begin_at(config: TrainConfig, start: int) -> None:
    """Train a run for few steps, then write its checkpoint once more, as the one of step `start`."""
    few = min(3, start)
    assert train(replace(config, trainer=replace(config.trainer, max_steps=few))) == 0
    folder = Path(str(config.run.dir)) / "checkpoints"
    checkpoint = latest_usable(folder)
    assert checkpoint is not None
    files = {path.name: [path.read_bytes()] for path in checkpoint.iterdir() if path.name != MANIFEST}
    state = json.loads(files[STATE][0]) | {"step": start, "tokens": start * config.batch_tokens}
    if start > few:
        write_checkpoint(folder, start, {**files, STATE: [to_json(state)]}, {})


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
    loss_function: Any = next_token_loss
    if choices.compile:
        first = batches_of(config, prepared, choices)[0].to(choices.device)
        loss_function = compiled_loss(gpt, first.tokens, first.targets, precision=choices.precision, say=print)

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
