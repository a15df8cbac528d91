"""The words of the plan that is printed before a run."""

import pytest
import torch

from minigpt.config.schema import ModelConfig
from minigpt.machine.plan import count_parameters, number_of
from minigpt.model.gpt import GPT


@pytest.mark.parametrize(("count", "words"), [(0, "0 layers"), (1, "1 layer"), (2, "2 layers"), (1200, "1,200 layers")])
def test_one_thing_is_no_plural(count, words):
    assert number_of(count, "layer") == words


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_is_counted_in_one_part(tied):
    qwen = {"norm": "rmsnorm", "qk_norm": "rmsnorm", "attention": "rotary", "activation": "swiglu", "bias": "qkv"}
    sizes = {"n_layer": 2, "n_head": 4, "n_kv_head": 2, "head_dim": 6, "n_embd": 16, "n_hidden": 40}
    with torch.device("meta"):
        model = GPT(ModelConfig(**qwen, **sizes, tied=tied), 71)
    parts = count_parameters(model)
    padding = (128 - 71) * 16 * (1 if tied else 2)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters()) - padding
    assert parts["MLP"] == 2 * 3 * 16 * 40
    assert parts["norms"] == 2 * (2 * 16 + 2 * 6) + 16
    assert parts["attention"] == 2 * (16 * (8 * 6) + 8 * 6 + 4 * 6 * 16)
    assert parts.get("output layer") == (None if tied else 71 * 16)
