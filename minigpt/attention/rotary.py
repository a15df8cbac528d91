"""Rotary positions: order told to attention itself, by turning queries and keys.

A position embedding says where a token stands; a rotation lets only the distance of two tokens reach their score.

Source: Su et al. 2021, "RoFormer", section 3.2.2.
"""

import torch
from torch import Tensor

BASE = 10_000.0  # the slowest pair of numbers turns once in 2 pi times about this many positions


def angles(positions: Tensor, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * BASE^(-2i/D) for the pairs i = 0 .. D/2 - 1.

    Args:
        positions: any shape, counted from 0.
        D: width of the vectors to turn, even.
        dtype: of the result. The angles are computed in fp32 at least: in bf16 257 is no number.

    Returns:
        Two tensors of the shape of `positions` with a last dimension D/2.
    """
    exact = torch.promote_types(dtype, torch.float32)
    pairs = torch.arange(D // 2, device=positions.device, dtype=exact)
    angle = positions[..., None].to(exact) * BASE ** (-2 * pairs / D)
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
