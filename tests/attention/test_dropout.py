"""Dropout: what F.dropout does, drawn faster on a CPU."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from minigpt.attention.dropout import Dropout, dropout


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


def test_a_probability_that_16_bits_would_round_to_one_drops_nearly_all():
    assert (dropout(torch.ones(400_000), 1 - 1e-6) == 0).float().mean() > 0.99


def test_neighbours_and_places_in_a_word_are_independent():
    torch.manual_seed(4)
    zero = (dropout(torch.ones(400_000), 0.3) == 0).double()
    for lag in (1, 2, 3, 4, 64):
        together = float((zero[:-lag] * zero[lag:]).mean())
        assert abs(together - 0.09) < 5 * math.sqrt(0.09 * 0.91 / 400_000)
    for place in range(4):
        assert abs(float(zero[place::4].mean()) - 0.3) < 5 * math.sqrt(0.21 / 100_000)


def test_the_gradient_passes_where_the_value_passed():
    torch.manual_seed(5)
    x = torch.randn(7, 11, 5, dtype=torch.float64, requires_grad=True)
    out = dropout(x.transpose(0, 2), 0.4)
    out.sum().backward()
    kept = (out != 0).transpose(0, 2)
    assert torch.allclose(x.grad, kept.double() / 0.6)
    assert torch.allclose(out, (x * kept / 0.6).transpose(0, 2))


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


def test_nothing_is_drawn_when_there_is_nothing_to_drop():
    layer, x = Dropout(0.5), torch.randn(9)
    before = torch.random.get_rng_state()
    assert layer.eval()(x) is x
    assert dropout(x, 0.0) is x
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(layer.train()(x), x)


def test_compiled_code_takes_torchs_own():
    """Which a compiler can see into; the graph has no break."""
    torch.manual_seed(9)
    compiled = torch.compile(lambda x: dropout(x, 0.5) + 0, fullgraph=True, backend="eager")
    out = compiled(torch.ones(100_000))
    assert out.unique().tolist() == [0.0, 2.0]
    assert abs(float(out.mean()) - 1) < 0.05
