"""The run's one optimizer."""

from collections.abc import Callable

import torch
import torch.nn as nn

from minigpt.config.schema import OptimizerConfig


def adamw(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only (embeddings included), not on biases and norms.

    The fused kernel updates all parameters in one call, on CPU too.

    Source: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization".
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    fused = next(model.parameters()).device.type in ("cpu", "cuda", "mps")
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=fused,
    )


OPTIMIZERS: dict[str, Callable[[OptimizerConfig, nn.Module], torch.optim.Optimizer]] = {"adamw": adamw}


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that `optimizer.name` stands for, over all of the model's parameters."""
    return OPTIMIZERS[config.name](config, model)
