"""A tiny model that is served, without HTTP."""

import pytest
import torch

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.tokenizer import build_tokenizer
from minigpt.model.gpt import GPT


@pytest.fixture
def loaded(tmp_path) -> LoadedCheckpoint:
    """Bytes, a context of 24 tokens, weights far from their beginning."""
    torch.manual_seed(5)
    tokenizer = build_tokenizer("byte")
    config = TrainConfig(model=ModelConfig(n_layer=2, n_head=2, n_embd=32, block_size=24))
    model = GPT(config.model, tokenizer.vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return LoadedCheckpoint(model, tokenizer, config, {}, tmp_path / "run")
