"""Dropout, with a fast way to draw its random numbers on a CPU."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16  # a value is kept or dropped by 16 random bits: p is met to within 1 / 2^17


def dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    """Set each value to zero with probability p and scale the others by 1 / (1 - p), which keeps their mean.

    F.dropout is the same and is used on accelerators and in compiled code. On a CPU it draws its random numbers one by
    one, which would be half of the time of a training step; here a whole block is drawn at once, from a generator
    that torch's generator seeds: the same seed gives the same bits.

    Args:
        x: any shape, floating point; the result has its shape and dtype.
        p: in [0, 1).
        training: False = leave x as it is.

    Source: Srivastava et al. 2014, "Dropout".
    """
    if not training or p == 0:
        return x
    dropped = round(p * STEPS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or dropped == STEPS:
        return F.dropout(x, p)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.SFC64(seed).random_raw(-(-x.numel() // 4))  # of 64 bits, for four values each
    bits = words.view(np.int16)[: x.numel()]  # uniform over -2^15 .. 2^15 - 1
    kept = torch.empty(x.shape, dtype=x.dtype)
    torch.ge(torch.from_numpy(bits).view(x.shape), dropped - STEPS // 2, out=kept)
    return x * kept.mul_(1 / (1 - p))


class Dropout(nn.Dropout):
    """`dropout` as a layer, in training mode only."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, training=self.training)
