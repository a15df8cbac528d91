"""LoRA: a model with an adapter on, the same with it merged, and what learns."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from minigpt.config.schema import AdapterConfig, ModelConfig
from minigpt.model.counting import sizes_of
from minigpt.model.gpt import GPT
from minigpt.model.lora import LoRA, adapter_of, base_of, merge, places, put_on, share
from minigpt.model.loss import next_token_loss

SMALL = ModelConfig(n_layer=2, n_head=6, n_embd=30, block_size=7)
MODERN = replace(SMALL, attention="rotary", n_kv_head=2, head_dim=4, activation="swiglu", norm="rmsnorm", bias="qkv")
MODELS = {"gpt2": SMALL, "qwen": MODERN, "linear": replace(SMALL, attention="linear", bias=False)}
V = 13
TOKENS = torch.tensor([[3, 1, 12, 0, 7], [5, 5, 2, 9, 11]])


def adapted(config: ModelConfig, targets: str = "all") -> GPT:
    """A model with an adapter that has learned something."""
    torch.manual_seed(4)
    gpt = GPT(config, V)
    put_on(gpt, AdapterConfig("lora", rank=3, alpha=7, targets=targets))
    for module in gpt.modules():
        if isinstance(module, LoRA):
            for B in module.B:
                torch.nn.init.normal_(B, std=0.5)
    return gpt


def plain(gpt: GPT) -> GPT:
    """The model below an adapter."""
    below = GPT(gpt.config, V)
    below.load_state_dict(base_of(gpt))
    return below


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_new_adapter_changes_no_bit(config):
    torch.manual_seed(4)
    gpt = GPT(config, V)
    before = gpt(TOKENS)
    put_on(gpt, AdapterConfig("lora"))
    assert torch.equal(gpt(TOKENS), before)


@pytest.mark.parametrize("targets", ["all", "qkv", "down,out"])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_merged_is_unmerged(config, targets):
    gpt = adapted(config, targets)
    one = plain(gpt)
    assert (gpt(TOKENS) - one(TOKENS)).abs().max() > 1e-2
    merge(one, adapter_of(gpt))
    assert (gpt(TOKENS) - one(TOKENS)).abs().max() <= 1e-5
    gpt, one = gpt.double(), plain(gpt).double()
    merge(one, adapter_of(gpt))
    torch.testing.assert_close(gpt(TOKENS), one(TOKENS), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("targets", ["v", "q,v", "k", "gate"])
def test_queries_keys_and_values_have_adapters_of_their_own(targets):
    gpt = adapted(MODERN, targets)
    one = plain(gpt)
    rows = {"q": range(24), "k": range(24, 32), "v": range(32, 40)}
    merge(one, adapter_of(gpt))
    changed = (one.blocks[1].attention.qkv.weight - base_of(gpt)["blocks.1.attention.qkv.weight"]).abs().sum(dim=1) > 0
    assert {*changed.nonzero()[:, 0].tolist()} == {row for each in targets.split(",") for row in rows.get(each, ())}
    assert (gpt(TOKENS) - one(TOKENS)).abs().max() <= 1e-5
    assert len([*places(gpt, targets)]) == 2 * len(targets.split(","))


def test_only_the_adapter_learns_and_its_gradient_is_that_of_the_merged_weight():
    gpt = adapted(MODERN).double()
    one = plain(gpt).double()
    merge(one, adapter_of(gpt))
    for model in (gpt, one):
        next_token_loss(model, TOKENS, TOKENS).backward()
    assert all((parameter.grad is not None) == (".adapter." in name) for name, parameter in gpt.named_parameters())
    lora = gpt.blocks[0].attention.qkv.adapter
    by_weight = one.blocks[0].attention.qkv.weight.grad
    for place, A, B in zip(lora.places, lora.A, lora.B, strict=True):
        rows = by_weight[place.first : place.first + place.rows]
        torch.testing.assert_close(B.grad, 7 / 3 * rows @ A.T, rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(A.grad, 7 / 3 * B.T @ rows, rtol=1e-9, atol=1e-13)


def test_the_loss_in_chunks_leaves_a_frozen_output_layer_alone():
    gradients = []
    for chunk in (0, 4):
        gpt = adapted(SMALL)
        next_token_loss(gpt, TOKENS, TOKENS, chunk=chunk).backward()
        gradients.append([parameter.grad for parameter in gpt.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["gpt2", "qwen3-124m"])
def test_at_most_2_percent_of_124_million_learn(name):
    file = Path(__file__).parents[3] / "configs" / "model" / f"{name}.yaml"
    config = ModelConfig(**yaml.safe_load(file.read_text()))
    whole = sizes_of(config, 50257).all
    assert whole > 120e6
    assert 0 < sizes_of(config, 50257, AdapterConfig("lora")).learning <= 0.02 * whole


def test_models_with_adapters_share_what_these_leave_alone():
    gpt = adapted(MODERN, "out")
    below = plain(gpt)
    before = {name: tensor.clone() for name, tensor in below.state_dict().items()}
    other = copy.deepcopy(below)
    merge(other, adapter_of(gpt))
    share(other, below)
    assert all(torch.equal(tensor, before[name]) for name, tensor in below.state_dict().items())
    own = {name for name, parameter in other.named_parameters() if parameter is not below.get_parameter(name)}
    assert own == {f"blocks.{n}.attention.out.weight" for n in range(2)}


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_rows_of_new_tokens_learn_alone_and_compile_as_one_graph(tied):
    torch.manual_seed(4)
    gpt = GPT(replace(SMALL, tied=tied), V)
    table = "token_embedding" if tied else "output"
    before = gpt.get_submodule(table).weight.detach().clone()
    put_on(gpt, AdapterConfig("lora"), range(gpt.vocab_size - 2, gpt.vocab_size))
    learning = {name: weight for name, weight in gpt.named_parameters() if weight.requires_grad}
    tokens = torch.randint(gpt.vocab_size, (3, 7))
    torch._dynamo.reset()
    for loss in (next_token_loss, torch.compile(next_token_loss, backend="aot_eager", fullgraph=True)):
        loss(gpt, tokens, tokens.roll(-1), chunk=4).backward()
    torch._dynamo.reset()
    rows = learning[f"{table}.adapter.rows"]
    assert rows.shape == (2, gpt.config.n_embd)
    assert rows.grad.abs().min() > 0
    with torch.no_grad():
        rows += 1
    saved = base_of(gpt)[f"{table}.weight"]
    assert saved.equal(gpt.get_submodule(table).weight)
    changed = (saved != before).any(dim=1).nonzero()[:, 0].tolist()
    assert changed == [gpt.vocab_size - 2, gpt.vocab_size - 1]
