"""A GPT as training leaves it: far from its initialisation, where biases are 0 and attention is nearly even."""

import torch

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT


def spread_gpt(*, vocab_size: int, std=0.15, seed=0, kernel="fused", dtype=torch.float32, **config) -> GPT:
    torch.manual_seed(seed)
    model = GPT(ModelConfig(**config), vocab_size, kernel=kernel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += std * torch.randn_like(parameter)
    return model.to(dtype).eval()
