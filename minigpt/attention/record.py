"""Record attention weights during a model's forward pass, which does not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of every layer in `model` that has a method `weights`.

    Just before a layer's forward pass, `weights` is called with the same arguments, without gradients and without
    drawing random numbers, so the model's outputs are the same bits. (The forward pass then writes the same keys into
    the KV cache, over those that the recording wrote.) The cost is each layer's scores, computed once more::

        with record_attention(model) as recorded:
            model(tokens)
        recorded["blocks.0.attention"]  # (B, H, T, S): rows are queries, columns keys

    Args:
        model: any module that holds attention layers; run it uncompiled, as `load_checkpoint` gives it.

    Yields:
        Weights (B, H, T, S) of the latest forward pass by layer name, in the order in which the layers ran. They
        are those before dropout. With a KV cache S counts the cached keys too.

    Raises:
        ValueError: if the model holds no such layer.
    """
    names = {module: name for name, module in model.named_modules() if hasattr(module, "weights")}
    if not names:
        wanted = "layers of minigpt/attention/layers.py, or with a method `weights` beside their `forward`"
        got = f"{type(model).__name__} without a layer that states its weights"
        raise ValueError(f"record_attention: got {got}; wanted a model with {wanted}")
    recorded: dict[str, Tensor] = {}

    @torch.no_grad()
    def record(layer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        recorded[names[layer]] = layer.weights(*arguments, **keywords)

    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in names]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()
