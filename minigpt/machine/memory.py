"""Memory. One full micro-batch is tried before step 1: what does not fit is cut smaller, with the same mathematics."""

import ctypes
import functools
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn as nn
from torch import Tensor

from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.prepare import Prepared
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices
from minigpt.model.loss import autocast, next_token_loss
from minigpt.process.group import Processes


@functools.cache  # it holds for as long as the process lives
def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for the next step, instead of giving it back to the system.

    Otherwise each step of a CPU run takes its activations from the system anew, and zeroing those pages costs it
    up to a sixth of its time. Only glibc on Linux has the switch; elsewhere nothing happens.

    Source: mallopt(3): M_TRIM_THRESHOLD = -1, M_TOP_PAD = -2, M_MMAP_MAX = -4.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):
            mallopt(parameter, value)


def fit_to_memory(
    gpt: nn.Module, config: TrainConfig, choices: Choices, *, prepared: Prepared, processes: Processes
) -> Choices:
    """Try one micro-batch; if it does not fit the memory of some device, all go on with a smaller one.

    Returns:
        The choices, with a micro-batch that fits everywhere.
    """
    gpt.to(choices.device).train()
    fitting = fit_micro_batch(gpt, choices, functools.partial(first_batch, prepared, config, choices.device), say=print)
    micro_batch = min(int(size) for size in processes.gather(str(fitting.micro_batch)))
    return replace(choices, micro_batch=micro_batch, accumulate=choices.micro_batch * choices.accumulate // micro_batch)


def first_batch(prepared: Prepared, config: TrainConfig, device: str, size: int) -> tuple[Tensor, Tensor]:
    """Return the run's first windows, to try things on: (tokens, targets), each (size, block_size)."""
    windows = MicroBatches(
        prepared.train, seed=config.seed, block_size=config.model.block_size, micro_batch=size, accumulate=1
    )
    batch = windows[0].to(device)
    return batch.tokens, batch.targets


def fit_micro_batch(
    gpt: nn.Module, choices: Choices, batch: Callable[[int], tuple[Tensor, Tensor]], *, say: Callable[[str], object]
) -> Choices:
    """Find a micro-batch that fits, beginning with the chosen one.

    A smaller one means more accumulation: the tokens of each step stay the same.

    Args:
        gpt: the model on its device, in training mode; left without gradients.
        choices: as chosen from config and hardware.
        batch: size -> (tokens, targets), each (size, block_size), on the model's device.
        say: told of each size that does not fit.

    Returns:
        The choices, with the micro-batch that fits.

    Raises:
        UserFault: not even a single sequence fits.
    """
    sequences = choices.micro_batch * choices.accumulate
    while not fits(gpt, batch, choices):
        smaller = [size for size in range(1, choices.micro_batch) if sequences % size == 0]
        if not smaller:
            raise UserFault(
                "not even one sequence fits the device's memory, forward and backward. Use a smaller model or "
                "model.block_size, or model.checkpoint_activations=true"
            )
        micro_batch = smaller[-1]
        say(
            f"Memory     a micro-batch of {choices.micro_batch} does not fit; going on with {micro_batch} x "
            f"{sequences // micro_batch} of them per step, the same {sequences} sequences"
        )
        choices = replace(choices, micro_batch=micro_batch, accumulate=sequences // micro_batch)
    return choices


def fits(gpt: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], choices: Choices) -> bool:
    """Whether one micro-batch goes forward and backward in the memory that the optimizer's averages leave."""
    held: list[Tensor] = []  # what the first update will need
    try:
        held += [torch.empty_like(parameter) for parameter in gpt.parameters() for _ in range(2)]
        tokens, targets = batch(choices.micro_batch)
        with autocast(choices.device, choices.precision):
            loss = next_token_loss(gpt, tokens, targets)
        loss.backward()
    except (
        RuntimeError,
        MemoryError,
    ) as error:  # torch.OutOfMemoryError is a RuntimeError, and the CPU's is a plain one
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        held.clear()
        gpt.zero_grad(set_to_none=True)
        if choices.device == "cuda":
            torch.cuda.empty_cache()
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator, of whatever device, could not give what was asked for."""
    texts = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error).lower() for text in texts)
