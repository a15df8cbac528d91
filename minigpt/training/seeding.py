"""Random numbers (dropout) as a function of (seed, micro-batch, rank): nothing to save, nothing to restore."""

import torch

_MASK = (1 << 64) - 1


def fold(*numbers: int) -> int:
    """Mix integers into one 63-bit seed. Source: Steele et al. 2014, SplitMix64's finaliser."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
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
