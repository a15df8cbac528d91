"""Muon: one optimizer over a whole model, which moves matrices by orthogonal updates and the rest by AdamW."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minigpt.model.parts import local, rows_of

# Each line (a, b, c) is one step X <- a X + (b X X^T + c (X X^T)^2) X, which pushes all singular values towards 1.
POLYNOMIALS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
Orthogonalize = Callable[[list[int], list[Tensor]], list[Tensor]]  # indices and their whole matrices -> the updates


def orthogonal(matrices: Tensor) -> Tensor:
    """Return nearly the orthogonal matrix closest to each: U V^T of its singular value decomposition U S V^T.

    `matrices` is (N, rows, columns), rows <= columns, in bf16 or wider; so is the result, whose singular values are
    between about 0.7 and 1.2.
    """
    X = matrices / (1.02 * torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for a, b, c in POLYNOMIALS:
        S = torch.bmm(X, X.mT)
        X = torch.baddbmm(X, torch.baddbmm(S, S, S, beta=b, alpha=c), X, beta=a)
    return X


def adam_groups(parameters: Sequence[nn.Parameter], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return groups in which weights decay in matrices only (embeddings included), not in biases and norms."""
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group | {"initial_lr": lr} for group in groups if group["params"]]


class Muon(torch.optim.AdamW):
    """One optimizer over a whole model: Muon for its matrices, AdamW for the rest.

    Muon moves a matrix by the nearest orthogonal matrix to its averaged gradient. That gradient is dominated by few
    directions; made orthogonal, it moves all directions by the same length. Matrices of one shape, up to transposition,
    are made orthogonal together.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; coefficients of the
    iteration: YouJiacheng's, as credited in github.com/KellerJordan/modded-nanogpt.

    Args:
        matrices: 2-d parameters.
        others: all other parameters; the 2-d ones are decayed.
        lr: of AdamW's part. It is the `initial_lr` of its groups, which a schedule multiplies.
        matrix_lr: of Muon's part: the update of a square matrix has singular values of about this size.
        momentum: decay of the matrices' averaged gradient (Nesterov's form).
        products: dtype of the iteration: bf16 if the hardware is fast in it.
        parts: rows of the matrices that a parameter stacks; each is made orthogonal separately.
        group: the processes that hold shards of the parameters; None if they are whole.
        options: AdamW's betas, eps, and weight_decay (decoupled, on all 2-d parameters).
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        *,
        lr: float,
        matrix_lr: float,
        momentum: float,
        weight_decay: float,
        products: torch.dtype = torch.float32,
        parts: Mapping[Tensor, list[int]] | None = None,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ):
        first = {"params": matrices, "lr": matrix_lr, "initial_lr": matrix_lr, "weight_decay": weight_decay}
        super().__init__([first, *adam_groups(others, lr, weight_decay)], lr=lr, fused=True, **options)
        self.momentum, self.products, self.parts, self.group = momentum, products, parts or {}, group

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = torch.enable_grad()(closure)() if closure else None
        matrices, *others = self.param_groups
        if moved := [parameter for parameter in matrices["params"] if parameter.grad is not None]:
            self.move_matrices(moved, matrices["lr"], matrices["weight_decay"])
        self.param_groups = others  # the rest is AdamW's
        super().step()
        self.param_groups = [matrices, *others]
        return loss

    def move_matrices(self, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        """Make Muon's update: average, make orthogonal, step; change nothing where `found_inf` is set on the device."""
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        weights = [local(parameter.detach()) for parameter in parameters]
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        averages = [local(self.state[parameter]["momentum"]) for parameter in parameters]
        kept: Tensor | float = 1 - lr * weight_decay
        if (skip := getattr(self, "found_inf", None)) is not None:
            kept = torch.where(skip > 0, 1.0, skip.new_full((), kept, dtype=weights[0].dtype))
            for gradient in gradients:
                gradient.nan_to_num_()
            torch._foreach_mul_(gradients, 1 - skip)
            torch._foreach_add_(gradients, torch._foreach_mul(averages, skip))  # lerp towards itself changes nothing
        torch._foreach_lerp_(averages, gradients, 1 - self.momentum)
        ahead = list(torch._foreach_lerp(gradients, averages, self.momentum))
        if weight_decay:
            torch._foreach_mul_(weights, kept)
        whole = [(len(parameter), parameter.shape[1]) for parameter in parameters]
        cuts = [self.parts.get(parameter, [rows]) for parameter, (rows, _) in zip(parameters, whole, strict=True)]
        part, parts = 0, 1
        if self.group is None:
            updates = self.directions(ahead, cuts)
        else:
            part, parts = dist.get_rank(self.group), dist.get_world_size(self.group)
            sent = [step.to(self.products) for step in ahead]

            def orthogonalize(indices: list[int], steps: list[Tensor]) -> list[Tensor]:
                return self.directions(steps, [cuts[index] for index in indices])

            updates = orthogonalize_sharded(sent, whole, orthogonalize, self.group)
        for weight, update, (n_rows, columns), cut in zip(weights, updates, whole, cuts, strict=True):
            begin, (first, end) = 0, rows_of(n_rows, part, parts)
            for size in cut:
                rows = slice(max(begin, first) - first, max(min(begin + size, end), first) - first)
                length = lr * max(1.0, size / columns) ** 0.5  # so that outputs move as much for every shape
                weight[rows].add_(update[rows], alpha=-length)
                begin += size

    def directions(self, matrices: list[Tensor], cuts: list[list[int]]) -> list[Tensor]:
        """Return whole matrices made orthogonal, part by part; those of one shape, up to transposition, together."""
        parts = [part for matrix, cut in zip(matrices, cuts, strict=True) for part in matrix.split(cut)]
        shapes: dict[tuple[int, ...], list[int]] = {}
        for index, part in enumerate(parts):
            shapes.setdefault(tuple(sorted(part.shape)), []).append(index)
        for alike in shapes.values():
            tall = [parts[index].shape[0] > parts[index].shape[1] for index in alike]
            lying = [parts[index].T if stands else parts[index] for index, stands in zip(alike, tall, strict=True)]
            updates = orthogonal(torch.stack(lying).to(self.products))
            if (skip := getattr(self, "found_inf", None)) is not None:
                updates *= 1 - skip.to(updates)
            for index, stands, update in zip(alike, tall, updates, strict=True):
                parts[index] = update.T if stands else update
        rest = iter(parts)
        return [torch.cat([*islice(rest, len(cut))]) if len(cut) > 1 else next(rest) for cut in cuts]


def orthogonalize_sharded(
    parts: Sequence[Tensor], shapes: Sequence[tuple[int, int]], orthogonalize: Orthogonalize, group: dist.ProcessGroup
) -> list[Tensor]:
    """Make sharded matrices orthogonal, each in one process: two exchanges a shape carry the rows there and back.

    Args:
        parts: this process's rows of each matrix, of one dtype.
        shapes: of the whole matrices.
        group: the processes that hold the matrices together; all of them call this.

    Returns:
        This process's rows of each update.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    updates: dict[int, Tensor] = {}
    for rows, columns in dict.fromkeys(shapes):
        indices = [index for index, shape in enumerate(shapes) if shape == (rows, columns)]
        count, depth = math.ceil(len(indices) / size), math.ceil(rows / size)  # of each process: matrices, rows
        sent = parts[0].new_zeros(size * count, depth, columns)
        for place, index in enumerate(indices):
            sent[place, : len(parts[index])] = parts[index]
        received = exchange(sent, group).view(size, count, depth, columns)  # by the process that has sent it
        whole = received.transpose(0, 1).reshape(count, size * depth, columns)
        mine = indices[rank * count : (rank + 1) * count]
        for place, update in enumerate(orthogonalize(mine, list(whole[: len(mine), :rows]))):
            whole[place, :rows] = update
        returned = exchange(whole.view(count, size, depth, columns).transpose(0, 1).reshape(sent.shape), group)
        updates |= {index: returned[place, : len(parts[index])] for place, index in enumerate(indices)}
    return [updates[index] for index in range(len(parts))]


def exchange(sent: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send each process its share of the first axis; return the shares that were received, as bytes of any dtype."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received.view(torch.uint8), sent.view(torch.uint8), group=group)
    return received
