"""A GPT that is to be loaded draws no random numbers and has every weight (and no compiler: tests/test_api.py)."""

import pytest
import torch

from minigpt.attention.layers import ATTENTION
from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT, empty_gpt


@pytest.mark.parametrize("attention", ATTENTION)
def test_it_has_a_gpts_weights_and_draws_none(attention):
    config = ModelConfig(n_layer=2, attention=attention)
    full = GPT(config, 71)
    state = torch.get_rng_state()
    empty = empty_gpt(config, 71)
    assert torch.get_rng_state().equal(state)
    shapes = {name: tensor.shape for name, tensor in full.state_dict().items()}
    for gpt in (empty, empty_gpt(config, 71, device="meta")):
        assert {name: tensor.shape for name, tensor in gpt.state_dict().items()} == shapes
    empty.load_state_dict(full.state_dict())
    tokens = torch.randint(71, (2, 9))
    assert empty.eval()(tokens).equal(full.eval()(tokens))
