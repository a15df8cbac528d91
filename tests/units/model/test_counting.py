"""Operations by formula are those that torch counts in a real step."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minigpt.config.schema import AdapterConfig, ModelConfig
from minigpt.model.counting import flops_per_token, sizes_of
from minigpt.model.gpt import GPT
from minigpt.model.lora import put_on
from minigpt.model.loss import next_token_loss

V, SIZES = 192, {"n_layer": 3, "n_head": 4, "n_embd": 64, "block_size": 128}
MODELS = {
    "gpt2": {},
    "qwen": {"attention": "rotary", "activation": "swiglu", "norm": "rmsnorm", "qk_norm": "rmsnorm", "n_kv_head": 2},
    "untied": {"tied": False, "head_dim": 24, "n_hidden": 100, "bias": "qkv"},
    "linear": {"attention": "linear"},
}


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_a_real_step(name):
    config = ModelConfig(**SIZES | MODELS[name])
    gpt, tokens = GPT(config, V, kernel="explicit"), torch.zeros(2, 128, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        next_token_loss(gpt, tokens, tokens).backward()
    assert flops_per_token(config, V) == pytest.approx(counter.get_total_flops() / (2 * 128), rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_those_of_a_real_model(name):
    config, adapter = ModelConfig(**SIZES | MODELS[name]), AdapterConfig("lora", rank=3)
    gpt = GPT(config, V)
    assert sizes_of(config, V).all == sum(weight.numel() for weight in gpt.parameters())
    put_on(gpt, adapter)
    learning = sum(weight.numel() for weight in gpt.parameters() if weight.requires_grad)
    assert sizes_of(config, V, adapter).learning == learning


def test_what_is_computed_twice_counts_once():
    twice = ModelConfig(**SIZES, checkpoint_activations=True)
    assert flops_per_token(twice, V) == flops_per_token(ModelConfig(**SIZES), V)
