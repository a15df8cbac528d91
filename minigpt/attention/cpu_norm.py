"""The root mean square norm on a CPU, with a backward pass that reads and writes memory a few times only.

On a CPU, torch computes this norm and its backward pass as chains of elementwise operations, each of which reads and
writes whole tensors. For y = x r with r = 1 / sqrt(mean(x^2) + eps), a gradient g of y gives

    dx = r (g - y mean(g y))

torch has a kernel for the backward pass of a layer norm, which is r (g - mean(g) - y mean(g y)) if the mean of x is
taken as 0. So dx is what this kernel returns, plus r mean(g).
"""

from typing import Any

import torch
from torch import Tensor


def nothing_is_rounded(x: Tensor, weight: Tensor) -> bool:
    """Return whether one kernel may normalise x and multiply by the weight: no rounding comes in between."""
    return weight.shape == x.shape[-1:] and weight.dtype == x.dtype == torch.promote_types(x.dtype, torch.float32)


class RMSNormOnCPU(torch.autograd.Function):
    """`rms_norm` of norms.py, to the bit; its gradients are the same up to rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        y = (wide * r).to(x.dtype)
        if nothing_is_rounded(x, weight):  # the kernel multiplies by the weight, too
            ctx.save_for_backward(x, weight, r)
            return y.mul_(weight)
        ctx.save_for_backward(x, weight, r, y)
        return (weight * y).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, r, *rounded = ctx.saved_tensors
        weight_learns = ctx.needs_input_grad[1]
        if not rounded:
            dx, d_weight = _backward(gradient, x, r, weight, weight_learns)
            return dx, d_weight, None
        d_weight = None
        if weight_learns:
            g = gradient.to(r.dtype) if x.dtype == torch.float16 else gradient  # a product in fp16 could overflow
            by_vector = (g * rounded[0]).reshape(-1, *weight.shape)
            d_weight = by_vector.sum(0, dtype=r.dtype).to(weight.dtype)  # a sum in fp16 could overflow, too
        ones = torch.ones(x.shape[-1], dtype=r.dtype, device=x.device)
        return _backward(gradient * weight.to(x.dtype), x, r, ones, False)[0], d_weight, None


def _backward(g: Tensor, x: Tensor, r: Tensor, weight: Tensor, weight_learns: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x (..., C) and weight (C,); g is that of weight x r."""
    C = x.shape[-1]
    dx, d_weight, _ = torch.ops.aten.native_layer_norm_backward(
        g, x, [C], torch.zeros_like(r), r, weight, None, [True, weight_learns, False]
    )
    share = (weight / C).to(g.dtype)  # divided before the sum, for the same reason
    mean = torch.mv(g.reshape(-1, C), share).view_as(r)
    return dx.add_((r * mean).to(dx.dtype)), d_weight
