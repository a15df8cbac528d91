"""Our own entrants of training: all of train.py, and the shortest loop around the same model."""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch

from minigpt.config.compose import compose
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


class Watch:
    """Notes the moments just before each optimizer step, and what is left out between them."""

    def __init__(self, memory_every: int = 0) -> None:
        self.memory_every = memory_every  # steps between looks at the process's memory; 0 = none
        self.memory: list[tuple[int, float]] = []  # (steps done, resident MB)
        self.moments: list[float] = []
        self.left_out: list[tuple[float, float]] = []  # (when, seconds)
        self.first_step_at = 0.0  # time.time()

    def tick(self) -> None:
        """A step's gradients are there."""
        if not self.moments:
            self.first_step_at = time.time()
        if self.memory_every and len(self.moments) % self.memory_every == 0:
            self.memory.append((len(self.moments), resident_mb()))
        self.moments.append(time.perf_counter())

    @contextlib.contextmanager
    def leaving_out(self) -> Iterator[None]:
        """The time inside does not count."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.left_out.append((began, time.perf_counter() - began))

    def result(self, warm_up: int) -> dict[str, Any]:
        """Milliseconds per step after the warm-up: wall time between the first and the last moment."""
        start, end = self.moments[warm_up], self.moments[-1]
        inside = [seconds for when, seconds in self.left_out if start <= when <= end]
        steps = len(self.moments) - 1 - warm_up
        return {
            "ms": 1e3 * (end - start - sum(inside)) / steps,
            "steps": steps,
            "first_step_at": self.first_step_at,
            "left_out": len(inside),
            "left_out_seconds": sum(inside),
            "memory": self.memory,
        }


def resident_mb() -> float:
    """Memory of this process: as it is now on Linux, elsewhere its highest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest / 1e6 if sys.platform == "darwin" else highest / 1e3


class Watching(L.Callback):
    """Tells a watch of each optimizer step, and of validations, which it leaves out."""

    def __init__(self, watch: Watch, sizes: set[int]):
        self.watch = watch
        self.sizes = sizes
        self.leaving_out = watch.leaving_out()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.watch.tick()
        self.sizes.add(pl_module.gpt.vocab_size)

    def on_validation_start(self, *_: Any) -> None:
        self.leaving_out = self.watch.leaving_out()
        self.leaving_out.__enter__()

    def on_validation_end(self, *_: Any) -> None:
        self.leaving_out.__exit__(None, None, None)


def whole(task: dict[str, Any]) -> dict[str, Any]:
    """train() with all its callbacks; validations are left out, saves and rows are not.

    Args:
        task: arguments (of scripts/train.py, run.dir included), warm_up, and where wanted product_error=true and
            memory_every (steps).

    Returns:
        What `Watch.result` says, product_error, batch_tokens and flops_per_token.
    """
    config, sizes = compose("train", task["arguments"]), set[int]()
    watch = Watch(task.get("memory_every", 0))
    code = train(config, callbacks=[Watching(watch, sizes)])
    assert code == 0, f"train() ended with {code}"
    facts = {
        "product_error": product_error() if task.get("product_error") else None,
        "batch_tokens": config.batch_tokens,
        "flops_per_token": flops_per_token(config.model, sizes.pop()),
    }
    return watch.result(task["warm_up"]) | facts


def settle(config: TrainConfig) -> tuple[Prepared, Choices]:
    """Tokens and automatic choices as train() makes them, and the process set up as it does."""
    prepared = prepare(config.data, config.tokenizer, say=lambda _: None)
    choices = choose(config, find_device(config), prepared.tokenizer.vocab_size)
    torch.set_num_threads(choices.threads)
    torch.set_float32_matmul_precision(choices.float32_products)
    keep_freed_memory()
    return prepared, choices


def new_model(config: TrainConfig, choices: Choices, vocab_size: int) -> GPT:
    """The weights that a run of this config begins with, on its device."""
    torch.manual_seed(fold(config.seed))
    gpt = GPT(config.model, vocab_size, kernel=choices.attention_kernel)
    return (gpt.double() if choices.precision == "fp64" else gpt).to(choices.device).train()


def bare(task: dict[str, Any]) -> dict[str, Any]:
    """The shortest loop that trains the same model on the same batches: no Lightning, callback, row or save."""
    config = compose("train", task["arguments"])
    prepared, choices = settle(config)
    gpt = new_model(config, choices, prepared.tokenizer.vocab_size)
    batches = batches_of(config, prepared, choices)
    optimizer, parameters = build_optimizer(config.optimizer, gpt), list(gpt.parameters())
    loss_function = next_token_loss
    if choices.compile:
        first = batches[0].to(choices.device)
        loss_function = compiled_loss(  # type: ignore[assignment]
            gpt, first.tokens, first.targets, precision=choices.precision, say=print
        )
    watch, warm_up, total = Watch(), task["warm_up"], config.trainer.max_steps or 0
    for step in range(total):
        for part in range(choices.accumulate):
            batch = batches[step * choices.accumulate + part].to(choices.device)
            with autocast(choices.device, choices.precision):
                loss = loss_function(gpt, batch.tokens, batch.targets)
            (loss / choices.accumulate if choices.accumulate > 1 else loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.optimizer.grad_clip)
        if choices.device == "cuda" and step in (warm_up, total - 1):
            torch.cuda.synchronize()
        watch.tick()
        optimizer.step()
        optimizer.zero_grad()
    return watch.result(warm_up)


def batches_of(config: TrainConfig, prepared: Prepared, choices: Choices, *, start_step: int = 0) -> MicroBatches:
    """The run's micro-batches; iterating begins at a step."""
    return MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        start_step=start_step,
    )


def look(task: dict[str, Any]) -> dict[str, Any]:
    """What a run of these arguments would choose on this machine, and its vocabulary."""
    config = compose("train", task["arguments"])
    hardware = find_device(config)
    prepared, choices = settle(config)
    return asdict(choices) | {"name": hardware.name, "vocab_size": prepared.tokenizer.vocab_size}


def product_error(size: int = 384) -> float:
    """Relative error of an fp32 product under the process's present settings, against fp64 (Frobenius norms)."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = a.double() @ b.double()
    got = (a.to(device) @ b.to(device)).cpu().double()
    return float((got - exact).norm() / exact.norm())
