"""Numbers of a step for each layer, for the report: the norm of its gradient, and how far its weights move."""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from minigpt.model.gpt import GPT
from minigpt.training.state import is_due

SAMPLED = 4096  # numbers of a weight, at most: the size of an update is estimated from them
GRAD_NORM, UPDATE = "train/grad_norm/", "train/update/"  # followed by the layer: their columns


def sample_of(weight: Tensor) -> Tensor:
    """Return a copy of some numbers of a weight, evenly spread. An odd stride does not stay in a few columns."""
    return weight.detach().flatten()[:: weight.numel() // SAMPLED | 1].clone()


class LayerWatch:
    """Compares the weights before and after every `every_steps`-th step (0: none), and changes nothing."""

    def __init__(self, gpt: GPT, every_steps: int):
        self.gpt, self.every_steps = gpt, every_steps
        self.before: dict[str, Tensor] = {}  # the step, by the names of the weights that it changes
        self.grad_norms = self.squares = torch.zeros(0)  # of each of them; of its gradient, update and weights

    def look(self, step: int, grad_norms: Tensor) -> None:
        """Take what is known before the update: the norm of each gradient, and numbers of each weight."""
        if not is_due(step, self.every_steps):
            return
        named = [(name, weight) for name, weight in self.gpt.named_parameters() if weight.grad is not None]
        self.grad_norms, self.before = grad_norms, {name: sample_of(weight) for name, weight in named}

    def measure(self) -> None:
        """Have the device compute what `columns` reads; it is there when a later result has been read."""
        if not self.before:
            return
        weights, parts = dict(self.gpt.named_parameters()), []
        for norm, (name, before) in zip(self.grad_norms.float(), self.before.items(), strict=True):
            update = sample_of(weights[name]) - before
            moved = torch.stack([update, before]).square().sum(1, dtype=torch.float32)
            parts.append(torch.cat([norm.square()[None], moved * (weights[name].numel() / len(before))]))
        sums = torch.stack(parts)
        self.squares = torch.empty_like(sums, device="cpu", pin_memory=sums.is_cuda).copy_(sums, non_blocking=True)

    def columns(self, mean_weight: float) -> dict[str, Any]:
        """Return columns of the step's row: each layer's gradient norm and |update| / |weights|; {} if none was seen.

        The gradients are divided by the `mean_weight` of the step's tokens.
        """
        if not self.before:
            return {}
        row, squares = dict[str, Any](), defaultdict[str, list[float]](lambda: [0.0, 0.0, 0.0])
        for name, part in zip(self.before, self.squares.tolist(), strict=True):
            layer = name.split(".")[1] if name.startswith("blocks.") else "embedding"
            squares[layer] = [a + b for a, b in zip(squares[layer], part, strict=True)]
        self.before = {}
        for layer, (gradient, change, size) in squares.items():
            row[GRAD_NORM + layer] = gradient**0.5 / mean_weight if mean_weight and math.isfinite(gradient) else None
            row[UPDATE + layer] = (change / size) ** 0.5 if size else None
        return row
