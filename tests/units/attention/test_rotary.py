"""The laws of rotary positions: lengths stay, only distances count, and it is the paper's rotation."""

import math
from functools import partial

import pytest
import torch

from minigpt.attention.constants import angles_from_zero
from minigpt.attention.layers import CausalSelfAttention
from minigpt.attention.rotary import Llama3Scaling, angles, rotate, turn

B, T, H, D = 2, 7, 3, 10
Rotary = partial(CausalSelfAttention, rotary=True, qk_norm="layernorm")


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_a_pair_is_turned_by_position_times_its_speed():
    x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)  # pairs (1, 0) and (0, 1): entries (0, 2) and (1, 3)
    slow = 3 * 10_000 ** (-2 / 4)
    expected = [math.cos(3), -math.sin(slow), math.sin(3), math.cos(slow)]
    torch.testing.assert_close(rotate(x, torch.tensor(3)), torch.tensor(expected, dtype=torch.float64))


def test_llama3s_scaling_keeps_fast_pairs_slows_slow_ones_and_is_smooth_between():
    """Llama 3.1 8B's own: 8 times, context 8,192. Wave lengths in tokens, as its published code states the rule."""
    D, theta, scaling = 128, 500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)
    pace = torch.tensor([theta ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
    wavelength, slowed = 2 * math.pi / pace, scaling.slowed(pace)
    fast, slow = wavelength < 8192 / 4, wavelength > 8192 / 1
    assert (fast.sum(), slow.sum()) == (29, 29)
    assert slowed[fast].equal(pace[fast])
    assert slowed[slow].equal(pace[slow] / 8)
    smooth = (8192 / wavelength - 1) / (4 - 1)
    between = (1 - smooth) * pace / 8 + smooth * pace
    torch.testing.assert_close(slowed[~(fast | slow)], between[~(fast | slow)])
    assert (slowed.diff() < 0).all()
    cos, sin = angles(torch.tensor(3), D, torch.float64, theta, scaling)
    torch.testing.assert_close(torch.atan2(sin, cos), 3 * slowed)


@pytest.mark.parametrize("shift", [1, 500])
def test_only_the_distance_reaches_a_score(shift):
    q, k = draw(T, D), draw(T, D, seed=1)
    places = torch.tensor([0, 3, 4, 9, 20, 21, 100])
    scores = rotate(q, places) @ rotate(k, places).T
    moved = rotate(q, places + shift) @ rotate(k, places + shift).T
    torch.testing.assert_close(scores, moved, rtol=0, atol=1e-11)
    other = rotate(q, places + shift) @ rotate(k, places).T
    assert (other - scores).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_kept_angles_equal_computed_ones(dtype):
    x = draw(B, T, 2 * H, D, dtype=dtype)
    with torch.inference_mode():
        turn(x, *angles_from_zero(T, D, x.device, dtype))
    x.requires_grad_()
    kept, computed = turn(x, *angles_from_zero(T, D, x.device, dtype)), rotate(x, torch.arange(T)[:, None])
    assert angles_from_zero(T, D, x.device, dtype)[0] is angles_from_zero(T, D, x.device, dtype)[0]
    assert torch.equal(kept, computed)
    kept.sum().backward()
    assert x.grad.isfinite().all()


def test_the_layer_knows_the_order_where_plain_attention_does_not():
    """The last token sees all others: without positions it would not notice that two of them changed places."""
    order = torch.tensor([1, 0, 2, 3, 4, 5, 6])
    x = draw(B, T, H * D)
    for make, notices in ((Rotary, True), (CausalSelfAttention, False)):
        torch.manual_seed(0)
        layer = make(H * D, H).double()
        assert ((layer(x[:, order])[:, -1] - layer(x)[:, -1]).abs().max() > 1e-4) == notices


def test_a_cache_without_angles_is_refused_by_name():
    with pytest.raises(ValueError, match="got a cache without angles; wanted those of the new tokens' positions"):
        Rotary(H * D, H)(draw(B, T, H * D, dtype=torch.float32), cache=object())


def test_heads_of_odd_width_are_refused_by_name():
    with pytest.raises(ValueError, match=r"n_embd=15 and n_head=3, heads of odd width 5; wanted .*n_embd=18"):
        Rotary(15, 3)
    with pytest.raises(ValueError, match=r"heads of odd width 7; wanted .*head_dim=8"):
        Rotary(15, 3, head_dim=7)


@pytest.mark.parametrize("kernel", ["explicit", "fused"])
def test_a_compiler_is_given_the_angles_and_the_mask_instead_of_their_formulas(kernel):
    """It would put the formulas into its loops and compute a power, a sine and a cosine for each number of q and k."""
    torch.manual_seed(0)
    scaling = Llama3Scaling(4.0, 1.0, 4.0, 16)
    layer = Rotary(H * D, H, kernel=kernel, rope_theta=50.0, rope_scaling=scaling)
    x = draw(B, T, H * D, dtype=torch.float32)
    graphs = []

    def read(graph, inputs):
        graphs.append(graph)
        return graph.forward

    assert torch.equal(torch.compile(layer, backend=read, fullgraph=True)(x), layer(x))
    called = {getattr(node.target, "__name__", str(node.target)) for graph in graphs for node in graph.graph.nodes}
    assert "layer_norm" in called
    assert not called & {"cos", "sin", "pow", "clamp", "masked_fill", "tril"}
