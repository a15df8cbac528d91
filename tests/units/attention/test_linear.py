"""The laws of linear attention: recurrent twin = chunked form = weights written down."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.attention import linear
from minigpt.attention.masks import causal_mask
from tests.units.attention.test_functional import gradients

B, H, T, DK, DV = 2, 3, 13, 5, 7


def qkv(T=T, *, dtype=torch.float64, scale=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((B, H, T, DK), (B, H, T, DK), (B, H, T, DV))
    return tuple((scale * torch.randn(s, generator=draw, dtype=torch.float64)).to(dtype) for s in shapes)


def by_weights(q, k, v):
    return linear.explicit_linear_attention(q, k, v, causal_mask(q.shape[-2]))


def test_linear_attention_on_paper():
    # Keys 0 and ln 2 below it: phi is 1 and 1/2. Values 4 and 10. Query of phi = 3: it cancels.
    k, v = torch.tensor([[0.0], [-0.6931472]]), torch.tensor([[4.0], [10.0]])
    q = torch.tensor([[2.0], [2.0]])
    expected = torch.tensor([[4.0], [(4 * 1 + 10 * 0.5) / 1.5]])
    for form in (linear.recurrent_linear_attention, linear.chunked_linear_attention, by_weights):
        torch.testing.assert_close(form(q, k, v), expected)


@settings(max_examples=40)
@given(T=st.integers(1, 17), chunk=st.integers(1, 19), seed=st.integers(0, 2**16))
def test_recurrent_equals_chunked_in_value_and_gradient(T, chunk, seed):
    tensors = qkv(T, seed=seed)
    recurrent = gradients(linear.recurrent_linear_attention, tensors)
    chunked = gradients(lambda q, k, v: linear.chunked_linear_attention(q, k, v, chunk=chunk), tensors)
    written_down = gradients(by_weights, tensors)
    for twin, ours, reference in zip(recurrent, chunked, written_down, strict=True):
        torch.testing.assert_close(ours, twin, rtol=0, atol=1e-11)
        torch.testing.assert_close(reference, twin, rtol=0, atol=1e-11)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**16), share=st.floats(0, 1))
def test_weights_are_never_negative_and_sum_to_one_or_to_zero_where_nothing_is_left(seed, share):
    q, k, _ = qkv(seed=seed)
    mask = torch.rand(B, 1, T, T, generator=torch.Generator().manual_seed(seed)) < share
    weights = linear.linear_attention_weights(q, k, mask)
    assert (weights >= 0).all()
    assert (weights.masked_select(~mask) == 0).all()
    expected = mask.any(dim=-1).double().expand(B, H, T)
    torch.testing.assert_close(weights.sum(dim=-1), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", [linear.recurrent_linear_attention, linear.chunked_linear_attention, by_weights])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_changes_no_bit_in_value_or_gradient(form, dtype):
    def under_autocast(*tensors):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return form(*tensors)

    tensors = qkv(200, dtype=dtype)
    for inside, outside in zip(gradients(under_autocast, tensors), gradients(form, tensors), strict=True):
        assert inside.dtype == dtype
        assert torch.equal(inside, outside)
