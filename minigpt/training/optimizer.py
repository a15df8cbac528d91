"""The run's one optimizer."""

from collections.abc import Callable

import torch
import torch.nn as nn

from minigpt.config.schema import OptimizerConfig
from minigpt.training.muon import Muon


def adamw(config: OptimizerConfig, model: nn.Module, precision: str) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only (embeddings included), not on biases and norms.

    The fused kernel updates all parameters in one call, on CPU too.

    Source: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization".
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group | {"initial_lr": config.lr} for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def muon(config: OptimizerConfig, model: nn.Module, precision: str) -> torch.optim.Optimizer:
    """Muon for the matrices of the blocks, AdamW for embeddings, the output layer and vectors."""
    blocks = [parameter for parameter in model.get_submodule("blocks").parameters() if parameter.dim() == 2]
    in_blocks = set(blocks)
    return Muon(
        blocks,
        [parameter for parameter in model.parameters() if parameter not in in_blocks],
        lr=config.lr,
        matrix_lr=config.matrix_lr,
        momentum=config.momentum,
        products={"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32),
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )


OPTIMIZERS: dict[str, Callable[[OptimizerConfig, nn.Module, str], torch.optim.Optimizer]] = {
    "adamw": adamw,
    "muon": muon,
}


def build_optimizer(config: OptimizerConfig, model: nn.Module, *, precision: str = "fp32") -> torch.optim.Optimizer:
    """The optimizer that `optimizer.name` stands for, over all of the model's parameters.

    Args:
        config: its name and numbers.
        model: on its device.
        precision: in which the run multiplies: fp32 | bf16 | fp64.

    Returns:
        Each group has its peak learning rate as `initial_lr`; the schedule multiplies that.
    """
    return OPTIMIZERS[config.name](config, model, precision)
