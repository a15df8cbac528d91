"""Memory. One full micro-batch is tried before step 1; if it does not fit, smaller ones compute the same step."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches, document_end
from minigpt.data.prepared import Prepared
from minigpt.faults import UserFault
from minigpt.machine.budget import budget_of, muon_update_bytes, plan_of
from minigpt.machine.choices import Choices
from minigpt.machine.compiling import LossFunction, compiled_loss, cut_for_ddp
from minigpt.machine.hardware import Hardware
from minigpt.machine.sharding import Layout, parts_of, silent_twin
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss, weighted_loss_sum
from minigpt.ranks.group import Processes

SURE_SHARE = 0.1  # of a machine's memory: a run that needs less of it fits
# Size -> the arguments of a loss: tokens and targets; for a weighted loss also weights and documents.
Batches = Callable[[int], tuple[Any, ...]]
Twin = Callable[[Choices], GPT]
WITHOUT_COMPILER = "torch.compile does not work {}; going on without it. trainer.compile=off skips the attempt"


def fit_to_memory(
    gpt: GPT,
    config: TrainConfig,
    choices: Choices,
    *,
    hardware: Hardware,
    prepared: Prepared,
    processes: Processes,
    layout: Layout | None = None,
) -> tuple[Choices, LossFunction]:
    """Try one micro-batch; if it does not fit the memory of some device, all go on with a smaller one.

    On a CPU with many times the memory that the run needs, nothing is tried: the first step comes sooner. If weights
    are to be sharded, a twin is tried in place of the model, which stays as it is.

    Returns:
        The choices, with a micro-batch that fits everywhere, and the loss to train with, compiled if that works.
    """
    windows = functools.partial(MicroBatches, prepared.train, seed=config.seed, block_size=config.model.block_size)
    weighted = config.data.mask_documents

    def first_batch(size: int) -> tuple[Any, ...]:
        end = document_end(config.data, prepared.tokenizer)
        batch = windows(micro_batch=size, accumulate=1, document_end=end)[0].to(choices.device)
        return (batch.tokens, batch.targets, batch.weights, batch.documents)[: 4 if weighted else 2]

    if layout is None:
        gpt.to(choices.device)
    gpt.train()
    plain = plain_loss(weighted, choices.loss_chunk)
    fitting, loss_function = choices, plain
    need = config.trainer.devices * memory_bytes(config, choices, gpt)
    if choices.device != "cpu" or choices.compile or need > SURE_SHARE * hardware.memory_bytes:
        twin = None if layout is None else functools.partial(silent_twin, config, layout, gpt.vocab_size)
        update = update_bytes(config, gpt, choices.precision)
        fitting, loss_function = try_loss(gpt, choices, first_batch, update, weighted, twin=twin)
    found = [each.split() for each in processes.gather(f"{fitting.micro_batch} {fitting.compile}")]
    if fitting.compile and not all(compiles == "True" for _, compiles in found):
        print(WITHOUT_COMPILER.format("on every rank"))
        fitting, loss_function = replace(fitting, compile=False), plain
    micro_batch = min(int(size) for size, _ in found)
    accumulate = choices.micro_batch * choices.accumulate // micro_batch
    return replace(fitting, micro_batch=micro_batch, accumulate=accumulate), loss_function


def plain_loss(weighted: bool, chunk: int) -> LossFunction:
    """Return the loss for batches with weights, or without; with `chunk` rows of logits at a time, or all (0)."""
    loss: LossFunction = weighted_loss_sum if weighted else next_token_loss
    return functools.partial(loss, chunk=chunk) if chunk else loss


def memory_bytes(config: TrainConfig, choices: Choices, gpt: GPT) -> int:
    """Return the most memory, in bytes, that a step takes on one device, by the count of budget.py."""
    options = {"precision": choices.precision, "kernel": choices.attention_kernel}
    return budget_of(config, gpt.vocab_size, plan_of(config, choices), **options).peak


def update_bytes(config: TrainConfig, gpt: GPT, precision: str) -> int:
    """Return the memory, in bytes, that an update takes for a moment on each device."""
    learning = [parameter for parameter in gpt.blocks.parameters() if parameter.requires_grad]
    matrices = sum(parameter.numel() for parameter in learning if parameter.dim() == 2)
    return muon_update_bytes(matrices, precision) // parts_of(config.trainer) if config.optimizer.name == "muon" else 0


def try_loss(
    gpt: GPT,
    choices: Choices,
    batch: Batches,
    update_bytes: int = 0,
    weighted: bool = False,
    *,
    twin: Twin | None = None,
) -> tuple[Choices, LossFunction]:
    """Compile the loss if it was chosen, and find a micro-batch that fits, beginning with the chosen one.

    Args:
        gpt: the model on its device, in training mode; left without gradients.
        choices: as chosen from config and hardware.
        batch: size -> (tokens, targets), each (size, block_size), on the model's device.
        update_bytes: memory that the optimizer takes for a moment.
        weighted: whether batches have weights, and `batch` returns them, too.
        twin: makes the model that is tried in place of `gpt` if weights are to be sharded; it compiles its blocks.

    Returns:
        The choices that work here, and the loss that goes with them.

    Raises:
        UserFault: not even a single sequence fits.
    """
    plain = plain_loss(weighted, choices.loss_chunk)
    if choices.compile:
        print("Compiling the training step (once; up to a minute or two) ...")
        compiled = compiled_loss(choices.device, plain) if twin is None else plain
        try:
            with cut_for_ddp(gpt) if twin is None else contextlib.nullcontext():
                return fit_micro_batch(gpt, choices, batch, compiled, update_bytes, twin=twin), compiled
        except UserFault:
            raise
        except Exception as error:  # compilers fail in many ways, none of which may stop a run
            torch._dynamo.reset()
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            print(WITHOUT_COMPILER.format(f"here ({type(error).__name__}: {reason})"))
            choices = replace(choices, compile=False)
    return fit_micro_batch(gpt, choices, batch, plain, update_bytes, twin=twin), plain


def fit_micro_batch(
    gpt: GPT, choices: Choices, batch: Batches, loss: LossFunction, update_bytes: int, *, twin: Twin | None = None
) -> Choices:
    """Return the choices with a micro-batch that fits. If it is smaller there are more: a step keeps its tokens."""
    sequences = choices.micro_batch * choices.accumulate
    while not fits(twin(choices) if twin else gpt, choices, batch, loss, update_bytes):
        smaller = [size for size in range(1, choices.micro_batch) if sequences % size == 0]
        if not smaller:
            remedy = "Use a smaller model or model.block_size, or model.checkpoint_activations=true"
            raise UserFault(f"not even one sequence fits the device's memory, forward and backward. {remedy}")
        less = replace(choices, micro_batch=smaller[-1], accumulate=sequences // smaller[-1])
        instead = f"going on with {less.micro_batch} x {less.accumulate} a step, the same {sequences} sequences"
        print(f"Memory     a micro-batch of {choices.micro_batch} does not fit; {instead}")
        choices = less
    return choices


def fits(gpt: GPT, choices: Choices, batch: Batches, loss_function: LossFunction, update_bytes: int) -> bool:
    """Return whether the memory is enough for a micro-batch's forward and backward pass and the update after it."""
    held: list[Tensor] = []  # in place of the optimizer's averages, which the first update will make
    try:
        learning = [parameter for parameter in gpt.parameters() if parameter.requires_grad]
        held += [torch.empty_like(parameter) for parameter in learning for _ in range(2)]
        arguments = batch(choices.micro_batch)
        with autocast(choices.device, choices.precision):
            loss = loss_function(gpt, *arguments)
        loss.backward()
        del loss
        torch.empty(update_bytes, dtype=torch.uint8, device=choices.device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        held.clear()
        gpt.zero_grad(set_to_none=True)
        if choices.device == "cuda":
            torch.cuda.empty_cache()
    return True


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error means that memory ran out, on any device and in any library.

    A compiler wraps the error in one of its own, so causes are looked at, too.
    """
    if error is None:
        return False
    words = ("out of memory", "can't allocate memory", "not enough memory", "_status_alloc_failed")
    matches = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        each in str(error).lower() for each in words
    )
    return matches or is_out_of_memory(error.__cause__ or error.__context__)
