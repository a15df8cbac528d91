"""Rotary positions: queries and keys are turned by angles that grow with their positions.

A position embedding says where a token stands; a rotation lets only the distance of two tokens reach their score.

Source: Su et al. 2021, "RoFormer", section 3.2.2.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

THETA = 10_000.0  # the slowest pair of numbers turns once in 2 pi times about this many positions


class Llama3Scaling(NamedTuple):
    """Llama 3.1's scaling for a longer context than that of its pre-training: it slows the slowest pairs.

    Pairs that turn more than `high_freq_factor` times within the original context keep their frequency; pairs that
    turn less than `low_freq_factor` times get 1 / `factor` of it; in between the frequency changes smoothly.

    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models"; the model's own published code.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens

    def slowed(self, frequencies: Tensor) -> Tensor:
        """Return the scaled frequencies, in radians per position."""
        turns = self.original_context * frequencies / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (kept + (1 - kept) / self.factor) * frequencies


def angles(
    positions: Tensor, D: int, dtype: torch.dtype, theta: float = THETA, scaling: Llama3Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of position * theta^(-2i/D) for the pairs i = 0 .. D/2 - 1.

    Args:
        positions: any shape, counted from 0.
        D: width of the vectors to turn, even.
        dtype: of the result. The angles are computed in fp32 at least: bf16 cannot represent position 257.
        theta: the base: a larger base slows the slow pairs, which then distinguish positions further apart.
        scaling: changes the frequencies of the pairs; None = leave them.

    Returns:
        Two tensors of the shape of `positions` with a last dimension D/2.
    """
    exact = torch.promote_types(dtype, torch.float32)
    pairs = torch.arange(D // 2, device=positions.device, dtype=exact)
    frequencies = theta ** (-2 * pairs / D)
    angle = positions[..., None].to(exact) * (scaling.slowed(frequencies) if scaling else frequencies)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pair (i, i + D/2) of each vector x (..., D) by its angle.

    Lengths stay, and the product of a query turned by m and a key turned by n depends on m - n alone.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn the vectors x (..., D) by their positions, which broadcast to x's dimensions but the last."""
    return turn(x, *angles(positions, x.shape[-1], x.dtype))
