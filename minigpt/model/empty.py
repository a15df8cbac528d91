"""A GPT with uninitialised weights, for loading or for shapes only."""

import torch

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT


def empty_gpt(config: ModelConfig, vocab_size: int, *, kernel: str = "fused", device: str = "cpu") -> GPT:
    """Return a GPT without drawing its weights, which takes seconds for a large one.

    `device="meta"` gives names and shapes only, at no cost in memory; other arguments as for `GPT`.
    """
    with torch.device("meta"):
        gpt = GPT(config, vocab_size, kernel=kernel)
    return gpt if device == "meta" else gpt.to_empty(device=device)
