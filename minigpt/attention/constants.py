"""Tensors that depend on sizes alone. Each is computed once, and compiled code holds it as a constant.

Otherwise the compiler would put the formulas into its loops: a power, a sine and a cosine for each number of q and k,
and a comparison of two positions for each score.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from minigpt.attention.masks import causal_mask
from minigpt.attention.rotary import angles

Made = TypeVar("Made")


def _kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Cache what `make` returns for its eight latest arguments; compiled code holds the result as a constant."""
    # Not in inference mode: it must serve training even if sampling made it first.
    once = functools.lru_cache(maxsize=8)(torch.inference_mode(False)(make))

    @functools.wraps(make)
    def kept(*facts: Any, **more: Any) -> Made:
        return once(*facts, **more)

    # As torch.compiler.assume_constant_result does, but without importing the compiler: that takes a second.
    kept._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return kept


@_kept
def causal_bias(T: int, S: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (T, S): 0 where the causal mask lets a query attend, minus infinity where it doesn't."""
    mask = causal_mask(T, S, device=device)
    return torch.zeros(T, S, device=device, dtype=dtype).masked_fill(~mask, -math.inf)


kept_causal_mask = _kept(causal_mask)


@_kept
def angles_from_zero(T: int, D: int, device: torch.device, dtype: torch.dtype, *rope: Any) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, 1, D/2) of the positions 0 .. T - 1, for x (B, T, H, D).

    `rope` holds `theta` and `scaling` of `angles`.
    """
    return angles(torch.arange(T, device=device)[:, None], D, dtype, *rope)
