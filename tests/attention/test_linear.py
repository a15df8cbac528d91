"""The laws of linear attention: recurrent twin = chunked form = weights written down."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.attention.layers import ATTENTION
from minigpt.attention.linear import (
    chunked_linear_attention,
    explicit_linear_attention,
    feature_map,
    linear_attention_weights,
    recurrent_linear_attention,
)
from minigpt.attention.masks import causal_mask, padding_mask

B, H, T, DK, DV = 2, 3, 13, 5, 7


def qkv(T=T, *, dtype=torch.float64, scale=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((B, H, T, DK), (B, H, T, DK), (B, H, T, DV))
    return tuple((scale * torch.randn(s, generator=draw, dtype=torch.float64)).to(dtype) for s in shapes)


def gradients(function, tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(out.dtype)
    return (out.detach(), *torch.autograd.grad(out, leaves, direction))


def by_weights(q, k, v):
    return explicit_linear_attention(q, k, v, causal_mask(q.shape[-2]))


def test_the_feature_map_is_elu_plus_one_and_positive():
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])
    torch.testing.assert_close(feature_map(x), torch.where(x > 0, x + 1, x.exp()))
    assert feature_map(x.bfloat16()).dtype == torch.float32
    assert feature_map(x.double()).dtype == torch.float64


def test_linear_attention_on_paper():
    # Keys 0 and ln 2 below it: phi is 1 and 1/2. Values 4 and 10. Query of phi = 3: it cancels.
    k, v = torch.tensor([[0.0], [-0.6931472]]), torch.tensor([[4.0], [10.0]])
    q = torch.tensor([[2.0], [2.0]])
    expected = torch.tensor([[4.0], [(4 * 1 + 10 * 0.5) / 1.5]])
    for form in (recurrent_linear_attention, chunked_linear_attention, by_weights):
        torch.testing.assert_close(form(q, k, v), expected)


@settings(max_examples=40)
@given(T=st.integers(1, 17), chunk=st.integers(1, 19), seed=st.integers(0, 2**16))
def test_recurrent_equals_chunked_in_value_and_gradient(T, chunk, seed):
    tensors = qkv(T, seed=seed)
    recurrent = gradients(recurrent_linear_attention, tensors)
    chunked = gradients(lambda q, k, v: chunked_linear_attention(q, k, v, chunk=chunk), tensors)
    written_down = gradients(by_weights, tensors)
    for twin, ours, theirs in zip(recurrent, chunked, written_down, strict=True):
        torch.testing.assert_close(ours, twin, rtol=0, atol=1e-11)
        torch.testing.assert_close(theirs, twin, rtol=0, atol=1e-11)


def test_recurrent_equals_chunked_over_many_chunks_of_the_default_size():
    tensors = qkv(200)
    for twin, ours in zip(
        gradients(recurrent_linear_attention, tensors), gradients(chunked_linear_attention, tensors), strict=True
    ):
        torch.testing.assert_close(ours, twin, rtol=0, atol=1e-10)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**16), share=st.floats(0, 1))
def test_weights_are_never_negative_and_sum_to_one_or_to_zero_where_nothing_is_left(seed, share):
    q, k, _ = qkv(seed=seed)
    mask = torch.rand(B, 1, T, T, generator=torch.Generator().manual_seed(seed)) < share
    weights = linear_attention_weights(q, k, mask)
    assert (weights >= 0).all()
    assert (weights.masked_select(~mask) == 0).all()
    expected = mask.any(dim=-1).double().expand(B, H, T)
    torch.testing.assert_close(weights.sum(dim=-1), expected, rtol=0, atol=1e-9)


def test_hidden_rows_give_zeros_and_finite_gradients():
    q, k, v = qkv(dtype=torch.float32)
    mask = padding_mask(torch.tensor([0, T]), T)
    out, *grads = gradients(lambda q, k, v: linear_attention_weights(q, k, mask) @ v, (q, k, v))
    assert (out[0] == 0).all()
    assert (out[1] != 0).all()
    assert all(grad.isfinite().all() and (grad[0] == 0).all() for grad in grads)


@pytest.mark.parametrize("form", [recurrent_linear_attention, chunked_linear_attention, by_weights])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_near_the_exact_result(form, dtype):
    q, k, v = qkv(300, dtype=dtype)
    exact = recurrent_linear_attention(q.double(), k.double(), v.double())
    out = form(q, k, v)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=0, atol={torch.float32: 2e-6, torch.bfloat16: 0.02}[dtype])


@pytest.mark.parametrize("form", [recurrent_linear_attention, chunked_linear_attention, by_weights])
def test_features_that_underflow_to_zero_give_finite_values_and_gradients(form):
    # elu(-200) + 1 is exactly 0: every weight is 0 / 0 if nobody takes care.
    q, k, v = qkv(dtype=torch.float32)
    for tensors in ((q - 200, k, v), (q, k - 200, v), (q - 200, k - 200, v), (1000 * q, 1000 * k, v)):
        assert all(tensor.isfinite().all() for tensor in gradients(form, tensors))


def test_under_autocast_the_denominator_is_summed_in_fp32():
    # 4096 equal keys: a running sum in bf16 would stop growing at 256 and leave outputs sixteen times too large.
    T = 4096
    q = k = torch.zeros(1, 1, T, DK)
    v = torch.ones(1, 1, T, DV)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = chunked_linear_attention(q, k, v)
    torch.testing.assert_close(out, v, rtol=0, atol=0.02)


@pytest.mark.parametrize("form", [recurrent_linear_attention, chunked_linear_attention, by_weights])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_changes_no_bit_in_value_or_gradient(form, dtype):
    def under_autocast(*tensors):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return form(*tensors)

    tensors = qkv(200, dtype=dtype)
    for inside, outside in zip(gradients(under_autocast, tensors), gradients(form, tensors), strict=True):
        assert inside.dtype == dtype
        assert torch.equal(inside, outside)


def test_under_autocast_weights_are_fp32():
    q, k, _ = qkv(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = linear_attention_weights(q, k, causal_mask(T))
    assert torch.equal(weights, linear_attention_weights(q.float(), k.float(), causal_mask(T)))


@torch.no_grad()
def test_under_autocast_the_layer_sums_in_fp32_with_a_mask_and_without():
    torch.manual_seed(0)
    layer, x = ATTENTION["linear"](12, 3), torch.randn(2, 200, 12)
    sums = []
    layer.out.register_forward_pre_hook(lambda _, arguments: sums.append(arguments[0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, k, v = layer.project(x)
        layer(x)
        layer(x, causal_mask(200))
    exact = recurrent_linear_attention(q.double(), k.double(), v.double()).transpose(1, 2).flatten(2)
    for out in sums:  # the exact sums, rounded once
        torch.testing.assert_close(out, exact.bfloat16(), rtol=2**-7, atol=1e-5)
        assert (out == exact.bfloat16()).float().mean() > 0.98
