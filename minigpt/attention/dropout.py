"""Dropout, with a fast way to draw its random numbers on a CPU."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

STEPS = 2**16  # a value is kept or dropped by 16 random bits: p is met to within 1 / 2^17


def dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    """Set each value to zero with probability p and scale the others by 1 / (1 - p), which keeps their mean.

    F.dropout is the same and is used on accelerators. On a CPU it draws its random numbers one by one, which would be
    half of the time of a training step; here they come by the block.

    Args:
        x: any shape, floating point.
        p: probability of zero, in [0, 1).
        training: False = leave x as it is.

    Returns:
        As x.

    Source: Srivastava et al. 2014, "Dropout".
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    # To a compiler drawing is one opaque operation: looking inside, it would draw one by one again.
    draw = _draw_in_compiled_code if torch.compiler.is_compiling() else _draw
    factors = torch.empty(x.shape, dtype=x.dtype)
    draw(factors, p)
    return x * factors


def _draw(factors: Tensor, p: float) -> None:
    """Fill with 0, by probability p, and 1 / (1 - p).

    The numbers come from a generator whose seed torch's generator draws: the same seed gives the same bits.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.SFC64(seed).random_raw(-(-factors.numel() // 4))  # of 64 bits, for four values each
    bits = words.view(np.int16)[: factors.numel()]  # uniform over -2^15 .. 2^15 - 1
    torch.ge(torch.from_numpy(bits).view(factors.shape), round(p * STEPS) - STEPS // 2, out=factors)
    factors.mul_(1 / (1 - p))


_draw_in_compiled_code = torch.library.custom_op("minigpt::draw_dropout", _draw, mutates_args=("factors",))


class Dropout(nn.Module):
    """`dropout` as a layer, in training mode only."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, training=self.training)
