"""A GPT whose weights are not drawn: they are read afterwards, or only their names and shapes are wanted."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT


def empty_gpt(config: ModelConfig, vocab_size: int, *, kernel: str = "fused", device: str = "cpu") -> GPT:
    """Return a GPT without drawing its weights, which takes seconds for a large one.

    Args:
        config: as for `GPT`.
        vocab_size: as for `GPT`.
        kernel: as for `GPT`.
        device: "meta" = names and shapes only, at no cost in memory.
    """
    with torch.device(device), _Unfilled():
        return GPT(config, vocab_size, kernel=kernel)


class _Unfilled(TorchFunctionMode):
    """A mode in which the functions of torch.nn.init return their tensor as it is."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if getattr(function, "__module__", "") == "torch.nn.init" else function(*args, **kwargs)
