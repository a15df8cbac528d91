"""The loss of next-token prediction, and the precision that it is computed in."""

import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def next_token_loss(gpt: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of the next token, over all positions at once (teacher forcing).

    Args:
        gpt: (B, T) tokens -> (B, T, V) logits.
        tokens: (B, T).
        targets: (B, T), the tokens one place later.

    Returns:
        A scalar.
    """
    return F.cross_entropy(gpt(tokens).flatten(0, 1), targets.flatten())


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager:
    """bf16: matrix products in bf16, weights and sums in fp32. Otherwise nothing."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
