"""Random numbers (dropout) as a function of (seed, micro-batch, rank): nothing to save, nothing to restore."""

import torch

from minigpt.splitmix import GOLDEN, MASK_64, scramble


def fold(*numbers: int) -> int:
    """Mix integers into one 63-bit seed."""
    state = 0
    for number in numbers:
        state = scramble((state + number + GOLDEN) & MASK_64)
    return state >> 1


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
