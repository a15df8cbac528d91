"""Muon: one optimizer over a whole model, which moves matrices by orthogonal updates and the rest by AdamW."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from minigpt.model.parts import local, rows_of

Shape = tuple[int, int]

# Each line (a, b, c) is one step X <- a X + (b X X^T + c (X X^T)^2) X, which pushes all singular values towards 1.
POLYNOMIALS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


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
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        *,
        lr: float,
        matrix_lr: float,
        momentum: float,
        products: torch.dtype = torch.float32,
        parts: Mapping[Tensor, list[int]] | None = None,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ):
        in_blocks, outside = list(matrices), list(others)
        tables = [parameter for parameter in outside if parameter.dim() >= 2]
        vectors = [parameter for parameter in outside if parameter.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": in_blocks, "lr": matrix_lr, "initial_lr": matrix_lr},
            {"params": tables, "initial_lr": lr},
            {"params": vectors, "initial_lr": lr, "weight_decay": 0.0},
        ]
        super().__init__([group for group in groups if group["params"]], lr=lr, fused=True, **options)
        self.matrices, self.momentum, self.products, self.parts = set(in_blocks), momentum, products, parts or {}
        self.group = group

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        moved = [
            parameter for parameter in group["params"] if parameter in self.matrices and parameter.grad is not None
        ]
        gradients = [parameter.grad for parameter in moved]
        if moved:
            self.move_matrices(moved, group["lr"], group["weight_decay"])
        for parameter in moved:
            parameter.grad = None  # so that AdamW skips it
        super().step()
        for parameter, gradient in zip(moved, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def move_matrices(self, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        """Make Muon's update: average, make orthogonal, step; change nothing where `found_inf` is set on the device."""
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        weights = [local(parameter.detach()) for parameter in parameters]
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        averages = [local(self.state[parameter]["momentum"]) for parameter in parameters]
        skip: Tensor = getattr(self, "found_inf", torch.zeros(()))
        changed = [*weights, *averages]
        before = [tensor.clone() for tensor in changed] if hasattr(self, "found_inf") else []
        torch._foreach_lerp_(averages, gradients, 1 - self.momentum)
        ahead = list(torch._foreach_lerp(gradients, averages, self.momentum))
        if weight_decay:
            torch._foreach_mul_(weights, 1 - lr * weight_decay)
        whole = [(len(parameter), parameter.shape[1]) for parameter in parameters]
        cuts = [self.parts.get(parameter, [rows]) for parameter, (rows, _) in zip(parameters, whole, strict=True)]
        part, parts = 0, 1
        if self.group is None:
            updates = self.directions(ahead, cuts)
        else:
            part, parts = dist.get_rank(self.group), dist.get_world_size(self.group)
            sent = [step.to(self.products) for step in ahead]
            updates = orthogonalize_sharded(
                sent,
                whole,
                lambda indices, steps: self.directions(steps, [cuts[index] for index in indices]),
                self.group,
            )
        for weight, update, (n_rows, columns), cut in zip(weights, updates, whole, cuts, strict=True):
            begin, (first, end) = 0, rows_of(n_rows, part, parts)
            for size in cut:
                rows = slice(max(begin, first) - first, max(min(begin + size, end), first) - first)
                length = lr * max(1.0, size / columns) ** 0.5  # so that outputs move as much for every shape
                weight[rows].add_(update[rows].to(weight.dtype), alpha=-length)
                begin += size
        for tensor, old in zip(changed, before, strict=False):
            tensor.copy_(torch.where(skip > 0, old, tensor))

    def directions(self, matrices: list[Tensor], cuts: list[list[int]]) -> list[Tensor]:
        """Return whole matrices made orthogonal, part by part; those of one shape, up to transposition, together."""
        results = [torch.empty_like(matrix, dtype=self.products) for matrix in matrices]
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for matrix, result, cut in zip(matrices, results, cuts, strict=True):
            for part, place in zip(matrix.split(cut), result.split(cut), strict=True):
                shapes.setdefault(tuple(sorted(part.shape)), []).append((part, place))
        for alike in shapes.values():
            lying = [part.T if part.shape[0] > part.shape[1] else part for part, _ in alike]
            updates = orthogonal(torch.stack(lying).to(self.products))
            for (part, place), update in zip(alike, updates, strict=True):
                place.copy_(update.T if part.shape[0] > part.shape[1] else update)
        return results


def orthogonalize_sharded(
    parts: Sequence[Tensor],
    shapes: Sequence[Shape],
    orthogonalize: Callable[[list[int], list[Tensor]], list[Tensor]],
    group: dist.ProcessGroup,
) -> list[Tensor]:
    """Make sharded matrices orthogonal, each in one process, its owner: two exchanges carry the rows there and back.

    Args:
        parts: this process's rows of each matrix, of one dtype.
        shapes: of the whole matrices.
        orthogonalize: (indices, whole matrices with these indices) -> their updates.
        group: the processes that hold the matrices together; all of them call this.

    Returns:
        This process's rows of each update.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    costs = [rows * columns * min(rows, columns) for rows, columns in shapes]
    load, owned = [0] * size, [list[int]() for _ in range(size)]
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):  # the most expensive first
        owner = load.index(min(load))
        load[owner] += costs[index]
        owned[owner].append(index)
    owned = [sorted(indices) for indices in owned]

    def shape_of(index: int, peer: int) -> Shape:
        first, end = rows_of(shapes[index][0], peer, size)
        return end - first, shapes[index][1]

    incoming = [[shape_of(index, peer) for index in owned[rank]] for peer in range(size)]
    pieces = exchange([[parts[index] for index in indices] for indices in owned], incoming, group, like=parts[0])
    updates = orthogonalize(owned[rank], [torch.cat(rows) for rows in zip(*pieces, strict=True)])
    cut = [update.split([shape[index][0] for shape in incoming]) for index, update in enumerate(updates)]
    outgoing = [[rows[peer] for rows in cut] for peer in range(size)]
    returning = [[shape_of(index, rank) for index in indices] for indices in owned]
    received = exchange(outgoing, returning, group, like=parts[0])
    by_index = dict(zip(itertools.chain(*owned), itertools.chain(*received), strict=True))
    return [by_index[index] for index in range(len(parts))]


def exchange(
    outgoing: list[list[Tensor]], incoming: list[list[Shape]], group: dist.ProcessGroup, *, like: Tensor
) -> list[list[Tensor]]:
    """Send each process its tensors, and return those received from each, in one collective.

    Args:
        outgoing: tensors, by the process that receives them.
        incoming: shapes of the tensors to receive, by the process that sends them.
        like: a tensor of the dtype and on the device of all of them.
    """
    sent = torch.cat([like.new_empty(0), *(tensor.flatten() for tensors in outgoing for tensor in tensors)])
    lengths = [[rows * columns for rows, columns in shapes] for shapes in incoming]
    received = like.new_empty(sum(map(sum, lengths)))
    dist.all_to_all_single(
        received.view(torch.uint8),  # bytes, which every backend takes
        sent.view(torch.uint8),
        output_split_sizes=[sum(sizes) * like.element_size() for sizes in lengths],
        input_split_sizes=[sum(tensor.nbytes for tensor in tensors) for tensors in outgoing],
        group=group,
    )
    pieces = iter(received.split(list(itertools.chain(*lengths))))
    return [[next(pieces).view(shape) for shape in shapes] for shapes in incoming]
