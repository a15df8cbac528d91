"""A tiny model that is served, without HTTP."""

import pytest

from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.schema import TrainConfig
from minigpt.data.tokenizer import build_tokenizer
from tests.units.model.spread import spread_gpt


@pytest.fixture
def loaded(tmp_path) -> LoadedCheckpoint:
    """Bytes, a context of 24 tokens, weights far from their beginning."""
    tokenizer = build_tokenizer("byte")
    sizes = {"vocab_size": tokenizer.vocab_size, "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 24}
    model = spread_gpt(**sizes, std=0.2, seed=5)
    return LoadedCheckpoint(model, tokenizer, TrainConfig(model=model.config), {}, tmp_path / "run")
