"""The learning rate as a pure function of how far the run is."""

import math
from collections.abc import Callable

from minigpt.config.schema import ScheduleConfig


def cosine(progress: float, final: float, config: ScheduleConfig) -> float:
    """Half a cosine from 1 to `final`. Source: Loshchilov & Hutter 2017, SGDR, equation 5."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float, final: float, config: ScheduleConfig) -> float:
    """A straight line from 1 to `final`."""
    return 1 + (final - 1) * progress


def wsd(progress: float, final: float, config: ScheduleConfig) -> float:
    """Warm-up, stable, decay: 1, then a straight line to `final` over the last `decay_fraction`.

    Source: Hu et al. 2024, MiniCPM.
    """
    return linear(max(0.0, (progress - (1 - config.decay_fraction)) / config.decay_fraction), final, config)


def constant(progress: float, final: float, config: ScheduleConfig) -> float:
    """1 throughout."""
    return 1.0


SHAPES: dict[str, Callable[[float, float, ScheduleConfig], float]] = {
    "cosine": cosine,
    "linear": linear,
    "wsd": wsd,
    "constant": constant,
}


def lr_factor(step: int, progress: float, total_steps: int | None, config: ScheduleConfig) -> float:
    """The factor on the peak learning rate for one optimizer step.

    Args:
        step: optimizer steps done before this one (the first is 0).
        progress: how far the run is, 0 to 1: step / total_steps, or the share of max_minutes if that is larger.
        total_steps: optimizer steps of the run; None if only max_minutes limits it.
        config: shape and warm-up.

    Returns:
        (step + 1) / (warmup_steps + 1) during warm-up (as in nanoGPT), then the shape's value, down to
        `final_lr_fraction`.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    warmup = config.warmup_steps / total_steps if total_steps else 0.0
    after_warmup = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    return SHAPES[config.name](min(max(after_warmup, 0.0), 1.0), config.final_lr_fraction, config)
