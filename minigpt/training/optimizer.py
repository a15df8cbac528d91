"""The run's one optimizer (AdamW or Muon), and its learning rate as a pure function of how far the run is."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from minigpt.attention.layers import CausalSelfAttention
from minigpt.config.schema import OptimizerConfig, ScheduleConfig
from minigpt.model.parts import local, rows_of
from minigpt.training.owners import by_owners

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

    Args:
        matrices: (N, rows, columns), rows <= columns; in bf16 or wider.

    Returns:
        As `matrices`; singular values between about 0.7 and 1.2.
    """
    X = matrices / (1.02 * torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for a, b, c in POLYNOMIALS:
        S = torch.bmm(X, X.mT)
        X = torch.baddbmm(X, torch.baddbmm(S, S, S, beta=b, alpha=c), X, beta=a)
    return X


class Muon(torch.optim.AdamW):
    """One optimizer over a whole model: Muon for its matrices, AdamW for the rest.

    Muon moves a matrix by the nearest orthogonal matrix to its averaged gradient. That gradient is dominated by few
    directions; made orthogonal, the update moves all directions by the same length, which takes the blocks of a small
    GPT to the same loss in far fewer steps.

    Matrices of one shape, up to transposition, are made orthogonal together. Where several processes hold parts of
    them, each makes its share orthogonal, for all.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; coefficients of the
    iteration: YouJiacheng's, as credited in github.com/KellerJordan/modded-nanogpt.

    Args:
        matrices: 2-d parameters; the optimizer's first group.
        others: all other parameters, split into decayed (2-d) and undecayed: its second and third group.
        lr: of AdamW's part. Each group's is its `initial_lr`, which a schedule multiplies.
        matrix_lr: of Muon's part: the update of a square matrix has singular values of about this size.
        momentum: decay of the matrices' averaged gradient (Nesterov's form).
        products: dtype of the iteration: bf16 where the hardware multiplies it fast.
        parts: of a parameter that stacks several matrices, the rows of each: they are made orthogonal one by one.
        group: the processes that hold the parameters in parts (DTensors); None where they are whole.
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
        first, rest = list(matrices), list(others)
        groups: list[dict[str, Any]] = [
            {"params": first, "lr": matrix_lr, "initial_lr": matrix_lr},
            {"params": [parameter for parameter in rest if parameter.dim() >= 2], "initial_lr": lr},
            {"params": [parameter for parameter in rest if parameter.dim() < 2], "initial_lr": lr, "weight_decay": 0.0},
        ]
        super().__init__([group for group in groups if group["params"]], lr=lr, fused=True, **options)
        self.matrices, self.momentum, self.products, self.parts = set(first), momentum, products, parts or {}
        self.group = group

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's wants a "step" of every parameter, matrices too

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
            parameter.grad = None  # so that AdamW passes over it
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
            updates = by_owners(
                sent, whole, lambda mine, steps: self.directions(steps, [cuts[each] for each in mine]), self.group
            )
        for weight, update, (rows, columns), cut in zip(weights, updates, whole, cuts, strict=True):
            begin, (first, end) = 0, rows_of(rows, part, parts)
            for size in cut:
                mine = slice(max(begin, first) - first, max(min(begin + size, end), first) - first)
                length = lr * max(1.0, size / columns) ** 0.5  # so that outputs move as much for every shape
                weight[mine].add_(update[mine].to(weight.dtype), alpha=-length)
                begin += size
        for tensor, old in zip(changed, before, strict=False):
            tensor.copy_(torch.where(skip > 0, old, tensor))

    def directions(self, matrices: list[Tensor], cuts: list[list[int]]) -> list[Tensor]:
        """Return whole matrices made orthogonal, part by part; those of one shape, up to transposition, together."""
        made = [torch.empty_like(matrix, dtype=self.products) for matrix in matrices]
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for matrix, result, cut in zip(matrices, made, cuts, strict=True):
            for part, place in zip(matrix.split(cut), result.split(cut), strict=True):
                shapes.setdefault(tuple(sorted(part.shape)), []).append((part, place))
        for alike in shapes.values():
            lying = [part.T if part.shape[0] > part.shape[1] else part for part, _ in alike]
            updates = orthogonal(torch.stack(lying).to(self.products))
            for (part, place), update in zip(alike, updates, strict=True):
                place.copy_(update.T if part.shape[0] > part.shape[1] else update)
        return made


def learning(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that learn: with an adapter on, its own."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def adamw(config: OptimizerConfig, model: nn.Module, *_: Any) -> torch.optim.Optimizer:
    """Return AdamW with weight decay on matrices only (embeddings included), not on biases and norms.

    The fused kernel updates all parameters in one call, on CPU too.

    Source: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization".
    """
    matrices = [parameter for parameter in learning(model) if parameter.dim() >= 2]
    vectors = [parameter for parameter in learning(model) if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group | {"initial_lr": config.lr} for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def muon(
    config: OptimizerConfig, model: nn.Module, precision: str, group: dist.ProcessGroup | None
) -> torch.optim.Optimizer:
    """Return an optimizer with Muon for the matrices of the blocks, AdamW for embeddings, output layer and vectors.

    A layer stacks the matrices of queries, keys and values into one for speed. With `split_qkv` each of the three is
    made orthogonal on its own, which trains better; otherwise they are, as one matrix of many rows.
    """
    parts: dict[Tensor, list[int]] = {}
    for layer in model.modules() if config.split_qkv else ():
        if isinstance(layer, CausalSelfAttention):
            parts[layer.qkv.weight] = [heads * layer.head_dim for heads in (layer.n_head, *[layer.n_kv_head] * 2)]
    blocks = [parameter for parameter in learning(model.get_submodule("blocks")) if parameter.dim() == 2]
    in_blocks = set(blocks)
    return Muon(
        blocks,
        [parameter for parameter in learning(model) if parameter not in in_blocks],
        lr=config.lr,
        matrix_lr=config.matrix_lr,
        momentum=config.momentum,
        products={"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32),
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        parts=parts,
        group=group,
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": adamw,
    "muon": muon,
}


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, *, precision: str = "fp32", group: dist.ProcessGroup | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer that `optimizer.name` stands for, over all of the model's parameters that learn.

    Args:
        config: its name and numbers.
        model: on its device.
        precision: of the run's matrix products: fp32 | bf16 | fp16 | fp64 (Muon multiplies in fp32 if fp16).
        group: the processes that hold the model in parts; None where it is whole.

    Returns:
        Each group has its peak learning rate as `initial_lr`; the schedule multiplies that.
    """
    return OPTIMIZERS[config.name](config, model, precision, group)


def cosine(progress: float, final: float, config: ScheduleConfig) -> float:
    """Follow half a cosine from 1 to `final`. Source: Loshchilov & Hutter 2017, SGDR, equation 5."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float, final: float, config: ScheduleConfig) -> float:
    """Follow a straight line from 1 to `final`."""
    return 1 + (final - 1) * progress


def wsd(progress: float, final: float, config: ScheduleConfig) -> float:
    """Stay at 1, then follow a straight line to `final` over the last `decay_fraction` (warm-up, stable, decay).

    Source: Hu et al. 2024, MiniCPM.
    """
    return linear(max(0.0, (progress - (1 - config.decay_fraction)) / config.decay_fraction), final, config)


def constant(progress: float, final: float, config: ScheduleConfig) -> float:
    """Stay at 1."""
    return 1.0


SHAPES: dict[str, Callable[[float, float, ScheduleConfig], float]] = {
    "cosine": cosine,
    "linear": linear,
    "wsd": wsd,
    "constant": constant,
}


def lr_factor(step: int, progress: float, total_steps: int | None, config: ScheduleConfig) -> float:
    """Return the factor on the peak learning rate for one optimizer step.

    Args:
        step: optimizer steps done before this one (the first is 0).
        progress: how far the run is, 0 to 1: step / total_steps, or the share of max_minutes if that is larger.
        total_steps: optimizer steps of the run; None if only max_minutes limits it.
        config: shape and warm-up.

    Returns:
        (step + 1) / (warmup_steps + 1) during warm-up (as in nanoGPT), then the shape's value, down to
        `final_lr_fraction`.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    warmup = config.warmup_steps / total_steps if total_steps else 0.0
    after_warmup = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    return SHAPES[config.name](min(max(after_warmup, 0.0), 1.0), config.final_lr_fraction, config)
