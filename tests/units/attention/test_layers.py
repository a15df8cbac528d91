"""The laws of the layers: projections, heads, masks and caches around the functions."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.attention.functional import explicit_attention
from minigpt.attention.layers import ATTENTION, KERNELS, QK_NORMS, CausalSelfAttention, CrossAttention, SelfAttention
from minigpt.attention.masks import causal_mask, padding_mask
from minigpt.attention.rotary import angles

B, T, S, H, D = 2, 5, 7, 3, 4
C = H * D
D_CONTEXT = 10


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(layer, *sizes, seed=0, **options):
    torch.manual_seed(seed)
    return layer(*sizes, **options).double()


class Store:
    """The smallest KV cache: what was appended, all in one tensor."""

    def __init__(self, heads=H, width=D):
        self.k = self.v = torch.zeros(B, heads, 0, width, dtype=torch.float64)

    def __call__(self, k, v):
        self.k, self.v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        return self.k, self.v

    def angles(self, T):
        """Those of the next T tokens."""
        return angles(self.k.shape[2] + torch.arange(T)[:, None], self.k.shape[3], self.k.dtype)


# One head


def test_self_attention_is_three_projections_the_scores_and_the_weighted_sum():
    layer, x = make(SelfAttention, 6, 3, 8), draw(B, T, 6)
    q, k, v = (x @ W.weight.T for W in (layer.W_q, layer.W_k, layer.W_v))
    weights = F.softmax(q @ k.transpose(1, 2) / math.sqrt(3), dim=-1)
    out, stated = layer(x)
    torch.testing.assert_close(stated, weights)
    torch.testing.assert_close(out, weights @ v)
    assert out.shape == (B, T, 8)
    assert len(list(layer.parameters())) == 3


# Many heads


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_attention_equals_single_heads_concatenated_and_projected(kernel, bias):
    layer, x = make(CausalSelfAttention, C, H, kernel=kernel, bias=bias), draw(B, T, C)
    W_q, W_k, W_v = layer.qkv.weight.chunk(3)
    b_q, b_k, b_v = layer.qkv.bias.chunk(3) if bias else torch.zeros(3, C, dtype=torch.float64)
    heads = []
    for h in range(H):
        rows = slice(h * D, (h + 1) * D)  # this head's share of each projection
        q, k, v = (F.linear(x, W[rows], b[rows]) for W, b in ((W_q, b_q), (W_k, b_k), (W_v, b_v)))
        heads.append(explicit_attention(q, k, v, causal_mask(T))[0])
    torch.testing.assert_close(layer(x), layer.out(torch.cat(heads, dim=-1)))


@pytest.mark.parametrize("attention", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_mask_narrows_what_a_token_sees_and_never_widens_it(attention, kernel):
    """None means no further constraint, as everywhere: a mask of True alone changes nothing, queries in a cache too."""
    layer, x = make(attention, C, H, kernel=kernel), draw(B, T, C)
    everything = torch.ones(T, T, dtype=torch.bool)
    for mask in (causal_mask(T), everything, everything[None, None]):
        torch.testing.assert_close(layer(x, mask), layer(x))
        torch.testing.assert_close(layer.weights(x, mask), layer.weights(x))
    before = layer(x, everything)
    x[:, 3:] += 1
    torch.testing.assert_close(layer(x, everything)[:, :3], before[:, :3])
    store, parts = Store(), []
    for t in (2, 3):  # the last 3 queries stand at the bottom right of 3 x 5
        part, turns = x[:, store.k.shape[2] :][:, :t], store.angles(t)
        parts.append(layer(part, torch.ones(t, store.k.shape[2] + t, dtype=torch.bool), store, turns))
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x))


# Grouped keys and heads of their own width


def repeated(layer, groups, **options):
    """The same layer with a head of keys and values for each head of queries."""
    G, D = layer.n_kv_head, layer.head_dim
    twin = make(CausalSelfAttention, C, groups * G, head_dim=D, **options)
    sizes = [groups * G * D, G * D, G * D]
    for mine, reference in ((layer.qkv.weight, twin.qkv.weight), (layer.qkv.bias, twin.qkv.bias)):
        q, *kv = mine.detach().split(sizes)
        kv = [part.unflatten(0, (G, D)).repeat_interleave(groups, dim=0).flatten(0, 1) for part in kv]
        reference.data = torch.cat([q, *kv])
    twin.out.load_state_dict(layer.out.state_dict())
    if options.get("qk_norm") == "rmsnorm":
        twin.qk_norm.load_state_dict(layer.qk_norm.state_dict())
    return twin


QK_OPTIONS = [{"rotary": True, "qk_norm": name} for name in QK_NORMS]


@pytest.mark.parametrize("attention", ATTENTION.values(), ids=ATTENTION)
def test_a_token_never_sees_the_future(attention):
    layer, x = make(attention, C, H), draw(B, T, C)
    before = layer(x)
    x[:, 3:] += 1
    torch.testing.assert_close(layer(x)[:, :3], before[:, :3])
    assert (layer(x)[:, 3:] - before[:, 3:]).abs().amin() > 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", [{}, {"rotary": True}, *QK_OPTIONS, {"linear": True}])
@pytest.mark.parametrize(("n_head", "n_kv_head", "head_dim"), [(6, 3, 4), (6, 2, 2), (4, 1, 6), (3, 3, 8)])
def test_grouped_keys_equal_repeated_heads_and_stay_grouped_in_the_cache(kernel, options, n_head, n_kv_head, head_dim):
    sizes = {"n_kv_head": n_kv_head, "head_dim": head_dim}
    layer, x = make(CausalSelfAttention, C, n_head, kernel=kernel, **sizes, **options), draw(B, T, C)
    assert layer.qkv.weight.shape == ((n_head + 2 * n_kv_head) * head_dim, C)
    assert layer.out.weight.shape == (C, n_head * head_dim)
    if options.get("qk_norm") == "rmsnorm":
        layer.qk_norm.q_weight.data, layer.qk_norm.k_weight.data = 1 + draw(2, head_dim, seed=2)
    twin = repeated(layer, n_head // n_kv_head, **options)
    mask = padding_mask(torch.tensor([2, 5]), T)
    for arguments in ((), (mask,)):
        torch.testing.assert_close(layer(x, *arguments), twin(x, *arguments))
        torch.testing.assert_close(layer.weights(x, *arguments), twin.weights(x, *arguments))
    store = Store(n_kv_head, head_dim)
    parts = [layer(part, cache=store, angles=store.angles(part.shape[1])) for part in x.split([3, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x), rtol=0, atol=1e-12)
    assert store.k.shape == store.v.shape == (B, n_kv_head, T, head_dim)


@pytest.mark.parametrize("n_kv_head", [2, 0])
def test_a_bad_combination_is_refused_by_name(n_kv_head):
    wanted = rf"got n_head=3 and n_kv_head={n_kv_head}; wanted a divisor of n_head: one of \[1, 3\]"
    with pytest.raises(ValueError, match=wanted):
        CausalSelfAttention(C, H, n_kv_head=n_kv_head)


# Cross-attention


def test_cross_attention_takes_a_context_of_other_length_and_width():
    layer = make(CrossAttention, C, H, D_CONTEXT)
    x, context = draw(B, T, C), draw(B, S, D_CONTEXT, seed=1)
    W_k, W_v = layer.kv.weight.chunk(2)
    b_k, b_v = layer.kv.bias.chunk(2)
    heads, weights = [], []
    for h in range(H):
        rows = slice(h * D, (h + 1) * D)
        q = F.linear(x, layer.q.weight[rows], layer.q.bias[rows])
        k, v = F.linear(context, W_k[rows], b_k[rows]), F.linear(context, W_v[rows], b_v[rows])
        weights.append(F.softmax(q @ k.transpose(1, 2) / math.sqrt(D), dim=-1))
        heads.append(weights[-1] @ v)
    assert layer(x, context).shape == (B, T, C)
    torch.testing.assert_close(layer(x, context), layer.out(torch.cat(heads, dim=-1)))
    torch.testing.assert_close(layer.weights(x, context), torch.stack(weights, dim=1))


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, S), min_size=B, max_size=B))
def test_cross_attention_respects_padding_of_the_context(lengths):
    layer = make(CrossAttention, C, H, D_CONTEXT)
    x, context = draw(B, T, C), draw(B, S, D_CONTEXT, seed=1)
    out = layer(x, context, padding_mask(torch.tensor(lengths), S))
    for b, length in enumerate(lengths):
        torch.testing.assert_close(out[b], layer(x[b : b + 1], context[b : b + 1, :length])[0])
