"""A GPT with uninitialised weights, for loading or for shapes only."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT


def empty_gpt(config: ModelConfig, vocab_size: int, *, kernel: str = "fused", device: str = "cpu") -> GPT:
    """Return a GPT without drawing its weights, which takes seconds for a large one.

    `device="meta"` gives names and shapes only, at no cost in memory; other arguments as for `GPT`.
    """
    with torch.device(device), _Unfilled():
        return GPT(config, vocab_size, kernel=kernel)


class _Unfilled(TorchFunctionMode):
    """Skips the functions of torch.nn.init: drawing on the meta device would import torch's compiler, for a second."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if getattr(function, "__module__", "") == "torch.nn.init" else function(*args, **kwargs)
