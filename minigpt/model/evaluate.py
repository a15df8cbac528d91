"""The loss on a whole split: every token of it predicted once, on a fixed grid."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.model.loss import autocast

if TYPE_CHECKING:  # anything with these attributes will do
    from minigpt.data.shards import TokenSplit


@dataclass(frozen=True)
class Score:
    """How well a model predicts a split."""

    nats: float  # summed over the predicted tokens
    tokens: int  # predicted: all but the split's first
    bytes: int  # of text that they stand for

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / math.log(2) / max(self.bytes, 1)


def grid_batches(split: "TokenSplit", block_size: int, batch: int) -> Iterator[Tensor]:
    """Yield the split's windows side by side: (n, block_size + 1) tokens each time, then the shorter tail alone.

    Window w predicts tokens w * block_size + 1 .. (w + 1) * block_size.
    """
    whole = (len(split) - 1) // block_size
    for first in range(0, whole, batch):
        starts = np.arange(first, min(first + batch, whole), dtype=np.int64) * block_size
        yield torch.from_numpy(split.windows(starts, block_size + 1))
    tail = len(split) - 1 - whole * block_size
    if tail:
        yield torch.from_numpy(split.windows(np.array([whole * block_size], dtype=np.int64), tail + 1))


@torch.no_grad()
def token_losses(
    model: nn.Module,
    split: "TokenSplit",
    *,
    block_size: int,
    batch: int,
    device: torch.device | str,
    precision: str,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Tensor]:
    """Yield the loss of each token in nats, in the order of the split.

    Args:
        model: (B, T) tokens -> (B, T, V) logits; in eval mode until the last loss was taken.
        split: tokens.
        block_size: T of the grid.
        batch: windows per forward pass.
        device: the model's.
        precision: "fp32", "bf16" or "fp64".
        rank: of this process, which scores every world_size-th batch: the scores of all ranks add up.
        world_size: processes.

    Yields:
        (n,) on the CPU, for each forward pass.
    """
    was_training = model.training
    model.eval()
    for number, windows in enumerate(grid_batches(split, block_size, batch)):
        if number % world_size != rank:
            continue
        windows = windows.to(device)
        with autocast(torch.device(device).type, precision):
            logits = model(windows[:, :-1])
            losses = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")
        yield losses.cpu()
    model.train(was_training)


def evaluate(model: nn.Module, split: "TokenSplit", *, first_token_bytes: int, **options: Any) -> Score:
    """Score the whole split, tail included, weighted by tokens.

    Args:
        model: left in the mode it came in.
        split: tokens.
        first_token_bytes: text bytes of the split's first token, the only one not predicted.
        **options: as for `token_losses`.

    Returns:
        The score of this rank's share; nats summed in fp64.
    """
    nats, predicted = torch.zeros((), dtype=torch.float64), 0
    for losses in token_losses(model, split, **options):
        nats += losses.double().sum()
        predicted += losses.numel()
    return Score(float(nats), predicted, split.bytes - first_token_bytes)
