"""Rotary positions: order told to attention itself, by turning queries and keys.

A position embedding says where a token stands; a rotation lets only the distance of two tokens reach their score.

Source: Su et al. 2021, "RoFormer", section 3.2.2.
"""

import functools

import torch
from torch import Tensor

BASE = 10_000.0  # the slowest pair of numbers turns once in 2 pi times about this many positions


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn the pair (i, i + D/2) of each vector by its position times BASE^(-2i/D).

    Lengths stay, and the product of a query turned by m and a key turned by n depends on m - n alone.

    Args:
        x: (..., D), D even.
        positions: counts from 0; broadcastable to x's dimensions but the last.

    Returns:
        As x.
    """
    cos, sin = _angles(positions, x.shape[-1], x.dtype)
    return _turn(x, cos, sin)


def rotate_from_zero(x: Tensor) -> Tensor:
    """`rotate` with positions 0 .. T - 1 along dimension 1 of x (B, T, ..., D), whose angles are kept for next time."""
    T, D = x.shape[1], x.shape[-1]
    cos, sin = _angles_from_zero(T, D, x.device, x.dtype)
    between = (T, *[1] * (x.dim() - 3), D // 2)
    return _turn(x, cos.view(between), sin.view(between))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def _angles(positions: Tensor, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (..., D/2), computed in fp32 at least: in bf16 257 is no number."""
    exact = torch.promote_types(dtype, torch.float32)
    pairs = torch.arange(D // 2, device=positions.device, dtype=exact)
    angle = positions[..., None].to(exact) * BASE ** (-2 * pairs / D)
    return angle.cos().to(dtype), angle.sin().to(dtype)


@torch.compiler.assume_constant_result  # a compiler would compute them anew for every row, head and step
def _angles_from_zero(T: int, D: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _kept_angles(T, D, device, dtype)


@functools.lru_cache(maxsize=8)
def _kept_angles(T: int, D: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # made while sampling, they must serve training as well
        return _angles(torch.arange(T, device=device), D, dtype)
