"""The run's one optimizer (AdamW or Muon), and its learning rate as a pure function of the run's progress."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minigpt.attention.layers import CausalSelfAttention
from minigpt.config.schema import OptimizerConfig, ScheduleConfig
from minigpt.model.parts import local
from minigpt.training.muon import Muon, adam_groups


def learning(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that learn: with an adapter on, its own."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def adam_options(config: OptimizerConfig) -> dict[str, Any]:
    """Return what Adam's update needs."""
    return {"lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps}


def adamw(config: OptimizerConfig, model: nn.Module, *_: Any) -> torch.optim.Optimizer:
    """Return AdamW with weight decay on matrices only (embeddings included), not on biases and norms.

    Source: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization".
    """
    groups = adam_groups(learning(model), config.lr, config.weight_decay)
    return torch.optim.AdamW(groups, fused=True, **adam_options(config))


def muon(
    config: OptimizerConfig, model: nn.Module, precision: str, group: dist.ProcessGroup | None
) -> torch.optim.Optimizer:
    """Return an optimizer with Muon for the matrices of the blocks, AdamW for embeddings, output layer and vectors.

    With `split_qkv`, the stacked matrices of queries, keys and values are made orthogonal separately.
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
        matrix_lr=config.matrix_lr,
        momentum=config.momentum,
        products={"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32),
        parts=parts,
        group=group,
        weight_decay=config.weight_decay,
        **adam_options(config),
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": adamw, "muon": muon}


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, *, precision: str = "fp32", group: dist.ProcessGroup | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer that `optimizer.name` names, over all parameters that learn, on the model's device.

    Each group has its peak learning rate as `initial_lr`, which the schedule multiplies. `precision` is that of the
    run's matrix products (Muon's are in fp32 if it is fp16); `group` holds the model in shards, if any.
    """
    optimizer = OPTIMIZERS[config.name](config, model, precision, group)
    if config.average_fraction:
        optimizer.register_step_post_hook(keep_means)
    return optimizer


def keep_means(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Keep a mean of each weight among the optimizer's averages, for `average_weights`."""
    for parameter, averages in optimizer.state.items():
        if "mean" not in averages:
            averages["mean"] = parameter.detach().clone()


@torch.no_grad()
def average_weights(optimizer: torch.optim.Optimizer, step: int, total_steps: int, fraction: float) -> None:
    """Update the mean of the weights after a step of a run's last part; after the last step, replace them by it.

    Before that part, the mean equals the weights: a run whose max_steps is reduced may begin in its middle.
    Source: Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization".
    """
    weights = [local(parameter) for parameter in optimizer.state]
    means = [local(averages["mean"]) for averages in optimizer.state.values()]
    count = step - total_steps + math.ceil(fraction * total_steps)
    if weights:  # unless no step has had a finite gradient
        torch._foreach_lerp_(means, weights, 1 / max(1, count))
    if weights and step == total_steps:
        torch._foreach_copy_(weights, means)


def cosine(progress: float, final: float, config: ScheduleConfig) -> float:
    """Follow half a cosine from 1 to `final`. Source: Loshchilov & Hutter 2017, SGDR, equation 5."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float, final: float, config: ScheduleConfig) -> float:
    """Follow a straight line from 1 to `final`."""
    return 1 + (final - 1) * progress


def wsd(progress: float, final: float, config: ScheduleConfig) -> float:
    """Stay at 1, then follow a straight line to `final` over the last `decay_fraction` of the steps after warm-up.

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

    It is (step + 1) / (warmup_steps + 1) during warm-up (as in nanoGPT), then the shape's value, down to
    `final_lr_fraction`; the lower of the two if time ends during the warm-up.

    Args:
        step: optimizer steps done before this one (the first is 0).
        progress: how far the run is, 0 to 1: step / total_steps, or the share of max_minutes if that is larger.
        total_steps: optimizer steps of the run; None if only max_minutes limits it.
        config: shape and warm-up.
    """
    warmup = config.warmup_steps / total_steps if total_steps else 0.0
    after_warmup = (progress - warmup) / (1 - warmup) if warmup < 1 else 0.0
    factor = SHAPES[config.name](min(max(after_warmup, 0.0), 1.0), config.final_lr_fraction, config)
    return min(factor, (step + 1) / (config.warmup_steps + 1))
