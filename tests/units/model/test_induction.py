"""A model with `model.init=induction` copies from its context before the first step."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from minigpt.config.compose import compose
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT

V, T = 512, 24
TWICE = torch.randint(V, (16, T), generator=torch.Generator().manual_seed(1)).repeat(1, 2)  # two equal halves


def gpt(**settings) -> GPT:
    torch.manual_seed(0)
    return GPT(replace(compose("train", ["experiment=text", "data=stdlib"]).model, **settings), V)


@torch.no_grad()
def losses(model: GPT) -> tuple[float, float]:
    """Return the loss on each half of `TWICE`."""
    loss = cross_entropy(model(TWICE)[:, :-1].transpose(1, 2), TWICE[:, 1:], reduction="none")
    return loss[:, : T - 1].mean().item(), loss[:, T:].mean().item()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tied": True, "n_layer": 4},
        {"n_head": 4, "n_kv_head": 2, "head_dim": 16},
        {"n_head": 1, "n_kv_head": 1, "head_dim": 96},
        {"rope_theta": 500_000.0, "n_embd": 256, "n_head": 4, "n_kv_head": 4, "head_dim": 64},
        {"n_layer": 6, "n_embd": 384, "n_head": 12, "n_kv_head": 12, "n_hidden": 1056},
    ],
)
def test_a_second_occurrence_is_foretold_from_the_first(settings):
    first, second = losses(gpt(**settings))
    assert second < first - 0.3
    first, second = losses(gpt(**settings, init="normal"))
    assert abs(second - first) < 0.1


@torch.no_grad()
def test_one_head_attends_to_the_token_before_and_one_to_what_followed_the_same_token():
    model, read = gpt(), []
    for block in model.blocks[:2]:
        block.norm_1.register_forward_hook(lambda module, inputs, output: read.append(output))
    model(TWICE)

    def place(layer: int) -> Tensor:
        return model.blocks[layer].attention.weights(read[layer])[:, 0].argmax(-1)  # (B, T), of the first head

    positions = torch.arange(2 * T)
    assert place(0)[:, 1:].eq(positions[:-1]).float().mean() > 0.99
    assert place(1)[:, T:].eq(positions[T:] - T + 1).float().mean() > 0.9


@pytest.mark.parametrize("sizes", [(8, 8), (8, 2), (4, 12)])
def test_tiny_sizes_are_possible(sizes):
    n_embd, head_dim = sizes
    for layers in (1, 2):
        model = gpt(n_embd=n_embd, head_dim=head_dim, n_head=1, n_kv_head=1, n_layer=layers)
        assert all(map(math.isfinite, losses(model)))


@pytest.mark.parametrize("typed", ["model.attention=softmax", "model.qk_norm=none"])
def test_it_needs_rotary_positions_and_a_norm(typed):
    with pytest.raises(UserFault, match=r"init=induction sets rotary .*, got model\.attention=.*Use model\.init"):
        compose("train", ["experiment=text", "data=stdlib", typed])
