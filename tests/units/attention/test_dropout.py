"""Dropout: what F.dropout does, drawn faster on a CPU."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from minigpt.attention.dropout import dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_values_are_zero_with_probability_p_and_the_rest_is_scaled_as_torch_does(p, dtype):
    torch.manual_seed(3)
    n = 400_001  # not a multiple of four
    out, twin = dropout(torch.ones(n, dtype=dtype), p), F.dropout(torch.ones(n, dtype=dtype), p)
    assert out.dtype == dtype
    assert torch.equal(out.unique(), twin.unique())  # zero and 1 / (1 - p), rounded alike
    deviation = math.sqrt(p * (1 - p) / n)
    assert abs(float((out == 0).double().mean()) - p) < 4 * deviation + 2**-17


def test_the_seed_alone_decides_and_each_call_draws_anew():
    def draw(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(6)
        return dropout(torch.ones(1000), 0.5), dropout(torch.ones(1000), 0.5)

    before = torch.get_num_threads()
    try:
        first, again = draw(1), draw(2)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(7)
    assert not torch.equal(dropout(torch.ones(1000), 0.5), first[0])


def test_activation_checkpointing_sees_the_same_zeros_twice():
    torch.manual_seed(8)
    x = torch.randn(50, 50, requires_grad=True)
    out = checkpoint(lambda x: dropout(x, 0.5) * x, x, use_reentrant=False)
    out.sum().backward()
    assert torch.allclose(x.grad * x / 2, out, atol=1e-6)  # d(x * 2 x) = 4 x where kept
