"""The measured trainings: all of train.py, and the shortest loop around the same model. Each job is a process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import lightning as L
import torch
from torch import Tensor

from minigpt.benchmark.settings import WARM_UP
from minigpt.config.compose import compose
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.prepared import Prepared
from minigpt.data.preparing.prepare import prepare
from minigpt.machine.choices import Choices, choose
from minigpt.machine.hardware import find_device
from minigpt.machine.memory import try_loss
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast
from minigpt.ranks.allocator import keep_freed_memory
from minigpt.splitmix import fold
from minigpt.training.optimizer import build_optimizer
from minigpt.training.run import train


class Stopwatch(L.Callback):
    """Notes the moment just before each optimizer step."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.tick()

    def tick(self) -> None:
        """Note the moment when a step's gradients are there."""
        self.moments.append(time.time())

    def result(self, tokens: int) -> dict[str, Any]:
        """Return the ms per step after the warm-up, the tokens of a step, and when the first step was reached."""
        counted = self.moments[WARM_UP:]
        ms = 1e3 * (counted[-1] - counted[0]) / (len(counted) - 1)
        return {"ms": ms, "tokens": tokens, "first_at": self.moments[0]}


def set_up(words: Sequence[str]) -> tuple[TrainConfig, Prepared, Choices]:
    """Return the config, tokens and automatic choices of a train command; set up this process as train() does."""
    config = compose("train", list(words))
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    choices = choose(config, find_device(config), prepared.tokenizer.vocab_size)
    torch.set_num_threads(choices.threads)
    torch.set_float32_matmul_precision(choices.float32_products)
    keep_freed_memory()
    return config, prepared, choices


def probe(words: Sequence[str]) -> dict[str, Any]:
    """Return what a run of these settings would choose on this machine."""
    config, _, choices = set_up(words)
    return asdict(choices) | {"name": find_device(config).name}


def train_py(words: Sequence[str]) -> dict[str, Any]:
    """Time minigpt.training.run.train() with all that a user's run has."""
    config, stopwatch = compose("train", list(words)), Stopwatch()
    code = train(config, callbacks=[stopwatch])
    assert code == 0, f"train() ended with {code}"
    return stopwatch.result(config.batch_tokens)


def bare(words: Sequence[str]) -> dict[str, Any]:
    """Time our model in the shortest loop, without Lightning, callbacks, rows and saves."""
    config, prepared, choices = set_up(words)
    gpt = new_model(config, choices, prepared.tokenizer.vocab_size)
    first = batches_of(config, prepared, choices)[0].to(choices.device)
    choices, loss_function = try_loss(gpt, choices, lambda size: (first.tokens, first.targets))

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        with autocast(choices.device, choices.precision):
            return loss_function(gpt, tokens, targets)

    return shortest_loop(config, prepared, choices, loss_of, build_optimizer(config.optimizer, gpt))


def batches(words: Sequence[str], start: int) -> dict[str, Any]:
    """Time the making of batches alone, from a step on."""
    config, prepared, choices = set_up(words)
    stream, stopwatch = iter(batches_of(config, prepared, choices, start)), Stopwatch()
    for _ in range(config.trainer.max_steps or 0):
        for _ in range(choices.accumulate):
            next(stream)
        stopwatch.tick()
    return stopwatch.result(config.batch_tokens)


def new_model(config: TrainConfig, choices: Choices, vocab_size: int) -> GPT:
    """Return the model with the weights with which a run of this config begins, on its device."""
    torch.manual_seed(fold(config.seed))
    gpt = GPT(config.model, vocab_size, kernel=choices.attention_kernel)
    return (gpt.double() if choices.precision == "fp64" else gpt).to(choices.device).train()


def batches_of(config: TrainConfig, prepared: Prepared, choices: Choices, start_step: int = 0) -> MicroBatches:
    """Return the run's micro-batches, from a step on."""
    return MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        start_step=start_step,
    )


def shortest_loop(
    config: TrainConfig,
    prepared: Prepared,
    choices: Choices,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    rates: Sequence[float] = (),
) -> dict[str, Any]:
    """Train for the config's steps on its batches, with nothing around a step.

    Args:
        config: says how many steps and where to clip.
        prepared: the tokens.
        choices: the device and the micro-batches.
        loss_of: (tokens, targets) -> mean loss.
        optimizer: of the model inside `loss_of`.
        rates: learning rate of each step; none: the optimizer's.

    Returns:
        The measurement, and the `losses` of all steps.
    """
    micro_batches, stopwatch = batches_of(config, prepared, choices), Stopwatch()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    total, losses = config.trainer.max_steps or 0, []
    for step in range(total):
        loss = torch.zeros((), device=choices.device)
        for part in range(choices.accumulate):
            batch = micro_batches[step * choices.accumulate + part].to(choices.device)
            share = loss_of(batch.tokens, batch.targets) / choices.accumulate
            share.backward()
            loss = loss + share.detach()
        if config.optimizer.grad_clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.grad_clip)
        if choices.device == "cuda" and step in (WARM_UP, total - 1):
            torch.cuda.synchronize()
        stopwatch.tick()
        for group in optimizer.param_groups if rates else []:
            group["lr"] = rates[step]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return stopwatch.result(config.batch_tokens) | {"losses": torch.stack(losses).tolist()}
