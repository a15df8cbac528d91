"""The root mean square norm: its formula, its precision, and queries and keys in one pass."""

import pytest
import torch
import torch.nn.functional as F

from minigpt.attention.norms import QueryKeyRMSNorm, RMSNorm, rms_norm
from minigpt.model.loss import autocast


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_is_the_papers_formula_and_a_vectors_length_does_not_matter():
    x, weight = draw(3, 5, 7), draw(7, seed=1)
    expected = x / (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected)
    torch.testing.assert_close(rms_norm(50 * x, weight, 0.0), rms_norm(x, weight, 0.0))
    torch.testing.assert_close(rms_norm(x, torch.ones(7), 0.0).square().mean(dim=-1), torch.ones(3, 5).double())
    assert (rms_norm(torch.zeros(7), torch.ones(7), 1e-6) == 0).all()


def test_in_bf16_it_is_computed_in_fp32_rounded_and_then_weighted():
    """As Llama's and Qwen's own code has it: otherwise their weights in bf16 give other logits."""
    x, layer = draw(3, 5, 64).to(torch.bfloat16), RMSNorm(64, 1e-6).to(torch.bfloat16)
    layer.weight.data = draw(64, seed=1).to(torch.bfloat16)
    exact = x.float()
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert layer(x).equal(layer.weight * exact.to(torch.bfloat16))
    assert not layer(x).equal((layer.weight.float() * exact).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_stays_under_autocast_too(dtype):
    x, norm = draw(2, 3, 6, 8).to(dtype), QueryKeyRMSNorm(4, 2, 8, 1e-6)
    with autocast("cpu", "bf16"):
        assert norm(x).dtype == dtype
    assert norm.to(dtype)(x).dtype == dtype


def test_queries_and_keys_in_one_pass_are_two_norms_with_a_weight_each():
    norm, qk = QueryKeyRMSNorm(4, 2, 8, 1e-5).double(), draw(2, 3, 6, 8)
    norm.q_weight.data, norm.k_weight.data = draw(2, 8, seed=1)
    q, k = qk.split([4, 2], dim=2)
    expected = torch.cat([rms_norm(q, norm.q_weight, 1e-5), rms_norm(k, norm.k_weight, 1e-5)], dim=2)
    torch.testing.assert_close(norm(qk), expected, rtol=0, atol=0)
    norm(qk).square().sum().backward()
    assert norm.q_weight.grad.shape == norm.k_weight.grad.shape == (8,)


@pytest.mark.parametrize("weight_dtype", [torch.float32, None], ids=["fp32 weight", "weight in x's dtype"])
@pytest.mark.parametrize("shape", [(7,), (4, 7)], ids=["one weight", "a weight per head"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_on_a_cpu_it_is_torchs_norm_to_the_bit_with_the_gradients_of_the_formula(dtype, shape, weight_dtype):
    x, g = draw(3, 5, 9, 7)[:, :, :4].to(dtype), draw(3, 5, 4, 7)
    weight = draw(*shape, seed=1).to(weight_dtype or dtype)
    results = []
    for norm, kind in ((rms_norm, None), (_formula, None), (_formula, torch.float64)):
        result, its = (each.detach().to(kind or each.dtype).requires_grad_() for each in (x, weight))
        out = norm(result, its, 1e-3)
        out.backward(g.to(out.dtype))
        results.append((out, result.grad, its.grad))
    (out, *gradients), (same, *_), (_, *exact) = results
    assert out.equal(same)
    tolerances = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.02}
    for mine, reference in zip(gradients, exact, strict=True):
        assert mine.shape == reference.shape
        assert (mine - reference).norm() <= max(tolerances[dtype], tolerances[weight.dtype]) * reference.norm()


def _formula(x, weight, eps):
    exact = F.rms_norm(x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], eps=eps)
    return (weight * exact.to(x.dtype)).to(x.dtype)


@pytest.mark.parametrize("shape", [(64,), (4, 64)])
def test_in_fp16_no_product_or_sum_of_large_gradients_overflows(shape):
    x, weight = draw(2, 3, 4, 64).half(), torch.ones(shape).requires_grad_()
    x[..., 0] = 100.0  # about 8 when normalised: with the gradient more than fp16 holds
    x.requires_grad_()
    rms_norm(x, weight, 1e-6).backward(torch.full(x.shape, 1e4, dtype=torch.float16))
    assert x.grad.isfinite().all()
    assert weight.grad.isfinite().all()
