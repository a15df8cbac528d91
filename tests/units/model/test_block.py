"""The block in every combination of its settings, against itself; formats/test_import.py has its architectures."""

import itertools
from functools import partial

import pytest
import torch

from minigpt.attention.record import record_attention
from minigpt.config.check import check
from minigpt.config.schema import ModelConfig, OptimizerConfig, TrainConfig
from minigpt.data.tokenizer import build_tokenizer
from minigpt.model.loss import next_token_loss
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.native.decoder import native_decoder
from minigpt.sampling.native.library import find_compiler
from minigpt.sampling.write import write
from minigpt.training.optimizer import build_optimizer
from tests.units.model.spread import spread_gpt

B, T, L, C, V, BLOCK = 2, 9, 2, 30, 71, 17
BYTE = build_tokenizer("byte")
make = partial(spread_gpt, vocab_size=V, n_layer=L, n_embd=C, block_size=BLOCK)
LLAMA3 = {"rope_scaling": "llama3", "rope_original_context": 12, "rope_factor": 32.0, "rope_theta": 500_000.0}


def tokens(B=B, T=T, seed=1):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


CHOICES = {
    "norm": ["layernorm", "rmsnorm"],
    "n_kv_head": [0, 1, 2],
    "head_dim": [0, 6],
    "n_hidden": [0, 50],
    "attention": ["softmax", "rotary", "linear"],
    "qk_norm": ["auto", "none", "layernorm", "rmsnorm"],
    "activation": ["gelu_tanh", "gelu", "relu_squared", "swiglu"],
    "bias": [True, False, "none", "qkv", "attention", "all"],
    "tied": [True, False],
    "rope": [{}, {"rope_theta": 300.0}, LLAMA3],
}


def covering_list():
    """Combinations in which every two values of two settings meet once at least, where they may."""

    def allowed(one):
        return "attention" not in one or "rope" not in one or one["attention"] == "rotary" or not one["rope"]

    def pairs(one):
        names = [name for name in CHOICES if name in one]
        return {(a, str(one[a]), b, str(one[b])) for a, b in itertools.combinations(names, 2)}

    two = [{a: x, b: y} for a, b in itertools.combinations(CHOICES, 2) for x in CHOICES[a] for y in CHOICES[b]]
    missing = set().union(*(pairs(one) for one in two if allowed(one)))
    found = []
    while missing:
        names = sorted(missing)[0]
        row = next(one for one in two if names in pairs(one))
        for name, values in CHOICES.items():
            if name not in row:
                fitting = [row | {name: value} for value in values if allowed(row | {name: value})]
                row = max(fitting, key=lambda each: len(pairs(each) & missing))
        missing -= pairs(row)
        found.append({name: row[name] for name in CHOICES})
    return found


COVERING = covering_list()


def of_each_value(rows):
    """The first of these combinations, as many as each value of each setting needs to occur."""
    seen, found = set(), []
    for row in rows:
        values = {(name, str(value)) for name, value in row.items()}
        found += [row] if values - seen else []
        seen |= values
    return found


OF_EACH_VALUE = of_each_value(COVERING)


def options_of(row):
    return {"n_head": 4, "n_embd": 24} | {key: value for key, value in row.items() if key != "rope"} | row["rope"]


def test_the_list_is_short_and_every_combination_is_sensible():
    assert 24 <= len(COVERING) <= 40
    values = {(name, str(value)) for name, choices in CHOICES.items() for value in choices}
    assert {(name, str(value)) for row in OF_EACH_VALUE for name, value in row.items()} == values
    for row in COVERING:
        assert not check(TrainConfig(batch_tokens=17 * 8, model=ModelConfig(block_size=17, **options_of(row))))


@pytest.mark.parametrize("row", COVERING)
def test_a_combination_trains_and_both_kernels_agree_in_value_and_gradient(row):
    results = []
    for kernel in ("explicit", "fused"):
        model = make(**options_of(row), kernel=kernel, dtype=torch.float64)
        loss = next_token_loss(model, tokens(), tokens().roll(-1))
        loss.backward()
        results.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
    (loss, grads), (twin_loss, twin_grads) = results
    torch.testing.assert_close(loss, twin_loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(grads, twin_grads, rtol=0, atol=1e-11)
    assert all((grad != 0).any() for grad in grads)
    for name in ("adamw", "muon"):
        optimizer = build_optimizer(OptimizerConfig(name=name, weight_decay=0.1), model, precision="fp64")
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        optimizer.step()
        assert all((tensor != before[key]).any() for key, tensor in model.state_dict().items())
        decayed = {id(each) for group in optimizer.param_groups if group["weight_decay"] for each in group["params"]}
        vectors = {key for key, each in model.named_parameters() if id(each) not in decayed}
        assert vectors == {key for key, each in model.named_parameters() if each.dim() == 1}
        assert {key for key in before if "norm" in key} <= vectors
    assert next_token_loss(model, tokens(), tokens().roll(-1)) < loss


@pytest.mark.parametrize("row", COVERING)
@torch.no_grad()
def test_a_combination_is_recorded_and_cached(row):
    model = make(**options_of(row), dtype=torch.float64)
    with record_attention(model) as recorded:
        logits = model(tokens())
    assert logits.equal(model(tokens()))
    for weights in recorded.values():
        assert weights.shape == (B, 4, T, T)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, 4, T, dtype=torch.float64))
        assert (weights.triu(1) == 0).all()
    cache = model.new_cache(B)
    assert cache.keys.shape == (L, B, row["n_kv_head"] or 4, BLOCK, row["head_dim"] or 6)
    parts = [model(part, cache=cache) for part in tokens().split([4, 1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row", OF_EACH_VALUE)
def test_a_combination_writes_the_same_text_with_and_without_a_cache_and_as_native_code(row):
    """Beyond its context too, where the window is read again."""
    model = make(**options_of(row), vocab_size=BYTE.vocab_size)
    ways = [{"use_cache": False}, {"use_cache": True}]
    decoders = [None, None]
    if find_compiler() and row["attention"] != "linear":
        ways.append({"use_cache": True})
        decoders.append(native_decoder(model))
    texts = []
    for way, decoder in zip(ways, decoders, strict=True):
        options = SamplingOptions(max_new_tokens=BLOCK + 2, temperature=0)
        written = write(model, BYTE, [[3, 1, 4, 1, 5], [9, 2]], options, decoder=decoder, **way)
        texts.append([text.written for text in written])
    assert all(text == texts[0] for text in texts)
    assert min(len(tokens) for tokens in texts[0]) > BLOCK
