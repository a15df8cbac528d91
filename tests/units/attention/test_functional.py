"""The laws of attention as functions of q, k, v. Sizes differ pairwise, so that a wrong axis fails."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.attention import functional
from minigpt.attention.functional import (
    attention_weights,
    explicit_attention,
    explicit_causal_attention,
    fused_attention,
    merge_heads,
    split_heads,
)
from minigpt.attention.masks import causal_mask, combine_masks, padding_mask

B, H, T, S, DK, DV = 2, 3, 5, 7, 11, 13


def qkv(T=T, S=S, *, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, T, DK, generator=draw, dtype=torch.float64).to(dtype)
    k = torch.randn(B, H, S, DK, generator=draw, dtype=torch.float64).to(dtype)
    v = torch.randn(B, H, S, DV, generator=draw, dtype=torch.float64).to(dtype)
    return q, k, v


def by_hand(q, k, v, may_attend):
    """Attention one number at a time, in plain Python. may_attend(b, h, t, s) -> bool."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    weights = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=torch.float64)
    B, H, T, Dk = q.shape
    for b in range(B):
        for h in range(H):
            for t in range(T):
                seen = [s for s in range(k.shape[-2]) if may_attend(b, h, t, s)]
                powers = [math.exp(float(q[b, h, t].double() @ k[b, h, s].double()) / Dk**0.5) for s in seen]
                for s, power in zip(seen, powers, strict=True):
                    weights[b, h, t, s] = power / sum(powers)
                    out[b, h, t] += weights[b, h, t, s] * v[b, h, s].double()
    return out, weights


def random_mask(shape, seed, share=0.5):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


MASK_SHAPES = [(T, S), (1, S), (S,), (B, 1, 1, S), (B, 1, T, S), (1, H, T, S), (B, H, T, S), (B, H, T, 1), (T, 1)]
MASKS = {
    "none": None,
    "causal": causal_mask(T, S),
    "right padding": padding_mask(torch.tensor([3, 7]), S),
    "left padding": padding_mask(torch.tensor([3, 7]), S, side="left"),
    "causal and left padding": combine_masks(causal_mask(T, S), padding_mask(torch.tensor([1, 6]), S, side="left")),
    "all keys of a row padded": padding_mask(torch.tensor([0, 4]), S),
} | {f"random {shape}": random_mask(shape, seed=len(shape)) for shape in MASK_SHAPES}


def gradients(function, tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(out.dtype)
    return out.detach(), *torch.autograd.grad(out, leaves, direction)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_explicit_attention_equals_attention_by_hand(mask):
    q, k, v = qkv()
    out, weights = explicit_attention(q, k, v, mask)
    full = torch.ones(B, H, T, S, dtype=torch.bool) if mask is None else mask.expand(B, H, T, S)
    expected_out, expected_weights = by_hand(q, k, v, lambda *place: bool(full[place]))
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(out, expected_out, rtol=0, atol=1e-12)
    torch.testing.assert_close(attention_weights(q, k, mask), weights, rtol=0, atol=0)


@given(seed=st.integers(0, 2**16), share=st.floats(0, 1), scale=st.floats(0.1, 30))
def test_a_row_with_a_key_to_attend_sums_to_one_and_a_row_without_to_zero(seed, share, scale):
    q, k, _ = qkv(seed=seed)
    mask = random_mask((B, 1, T, S), seed, share)
    weights = attention_weights(scale * q, k, mask)
    assert (weights >= 0).all()
    assert (weights.masked_select(~mask) == 0).all()
    expected = mask.any(dim=-1).double().expand(B, H, T)
    torch.testing.assert_close(weights.sum(dim=-1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", [attention_weights, lambda q, k: fused_attention(q, k, k)])
def test_queries_and_keys_of_different_width_are_refused_by_name(attention):
    q, k, _ = qkv()
    with pytest.raises(ValueError, match="queries of width 10 and keys of width 11; wanted the same width"):
        attention(q[..., :10], k)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_fused_equals_explicit_in_value_and_gradient(mask, dtype):
    tensors = qkv(dtype=dtype)
    out, *grads = gradients(lambda q, k, v: fused_attention(q, k, v, mask), tensors)
    twin, *twin_grads = gradients(lambda q, k, v: explicit_attention(q, k, v, mask)[0], tensors)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.08}[dtype]
    assert out.dtype == twin.dtype == dtype
    torch.testing.assert_close(out, twin, rtol=0, atol=tolerance)
    for grad, twin_grad in zip(grads, twin_grads, strict=True):
        assert grad.isfinite().all()
        torch.testing.assert_close(grad, twin_grad, rtol=0, atol=tolerance)


@settings(max_examples=30)
@given(T=st.integers(1, 6), past=st.integers(0, 5), padding=st.booleans(), seed=st.integers(0, 999))
def test_fused_causal_is_bottom_right_aligned_and_equals_explicit(T, past, padding, seed):
    S = past + T
    tensors = qkv(T, S, seed=seed)
    mask = padding_mask(torch.tensor([seed % (S + 1), S]), S, side="left") if padding else None
    both = combine_masks(mask, causal_mask(T, S))
    fused = gradients(lambda q, k, v: fused_attention(q, k, v, mask, causal=True), tensors)
    explicit = gradients(lambda q, k, v: explicit_attention(q, k, v, both)[0], tensors)
    for ours, reference in zip(fused, explicit, strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "attention", [lambda *a: explicit_attention(*a)[0], fused_attention], ids=["explicit", "fused"]
)
def test_a_row_with_nothing_to_attend_gives_zeros_and_finite_gradients(attention, shape, dtype):
    tensors = qkv(dtype=dtype)
    out, *grads = gradients(lambda q, k, v: attention(q, k, v, torch.zeros(shape, dtype=torch.bool)), tensors)
    assert (out == 0).all()
    assert all((grad == 0).all() for grad in grads)
    # Only some rows hidden: these are zero, the others untouched, all gradients finite.
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[2] = False
    out, *grads = gradients(lambda q, k, v: attention(q, k, v, mask), tensors)
    assert (out[:, :, 2] == 0).all()
    assert (out[:, :, [0, 1, 3, 4]].abs().amax(dim=-1) > 0).all()
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][:, :, 2] == 0).all()


@pytest.mark.parametrize(
    "attention", [lambda *a: explicit_attention(*a)[0], fused_attention], ids=["explicit", "fused"]
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_no_nan_arises_on_the_way_not_even_one_that_is_cut_later(attention):
    with torch.autograd.detect_anomaly():  # raises at the first NaN in the backward pass
        gradients(lambda q, k, v: attention(q, k, v, MASKS["all keys of a row padded"]), qkv())


def test_heads_are_cut_from_the_width_not_from_the_tokens():
    x = torch.arange(B * T * H * 2).view(B, T, H * 2)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, T, 2)
    for head in range(H):
        assert heads[:, head].equal(x[:, :, 2 * head : 2 * head + 2])
    assert merge_heads(heads).equal(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("S", [5, 8])
@pytest.mark.parametrize("whole", [256, 2], ids=["whole", "in blocks"])
def test_explicit_causal_attention_is_explicit_attention_under_the_causal_mask(monkeypatch, dtype, S, whole):
    monkeypatch.setattr(functional, "WHOLE", whole)
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, n, 11, dtype=dtype, requires_grad=True) for n in (5, S, S))
    with torch.inference_mode():  # what sampling makes first, training uses afterwards
        explicit_causal_attention(q, k, v)
    fast = explicit_causal_attention(q, k, v)
    plain, _ = explicit_attention(q, k, v, causal_mask(5, S))
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(fast, plain, **tolerance)
    ways = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (fast, plain)]
    for one, other in zip(*ways, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
