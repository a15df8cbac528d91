"""Linear attention: softmax's exp(q . k) replaced by phi(q) . phi(k), so that the past fits into one matrix.

    out_t = phi(q_t) (sum_{s<=t} phi(k_s) v_s^T) / (phi(q_t) . sum_{s<=t} phi(k_s)),    phi(x) = elu(x) + 1

The sums don't depend on the query: they are carried along the sequence, and the work grows with T, not T^2.
The weights of a query still exist (positive, summing to 1), but they are never stored.
Everything is computed in fp32 at least, autocast or not, since the sums run over the whole past.

Shapes as in functional.py. Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 7 and 9 to 12.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6  # smallest denominator: if every phi underflows to 0, the output is 0, not 0 / 0


def _without_autocast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Switch autocast off for a function: it would round every matrix product to bf16, whatever its factors' dtype."""

    @wraps(function)
    def wrapped(q: Tensor, *others: Any, **options: Any) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            return function(q, *others, **options)

    return wrapped


def feature_map(x: Tensor) -> Tensor:
    """Return phi(x) = elu(x) + 1, which is positive, so that weights are too; in fp32, or fp64 if x is."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


def running_sum(x: Tensor, dim: int) -> Tensor:
    """Return x.cumsum(dim). On a GPU torch's cumsum is not deterministic: a matrix product, if that is required."""
    if not (x.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return x.cumsum(dim)
    lower = x.new_ones(x.shape[dim], x.shape[dim]).tril()
    return (lower @ x.movedim(dim, -2)).movedim(-2, dim)


@_without_autocast
def linear_attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the weights of linear attention: phi(q) phi(k)^T, hidden ones set to 0, each row divided by its sum.

    Zeros are right here and would be wrong before a softmax: no exponential follows, and the division comes last.

    Args:
        q, k: (..., T, Dk) and (..., S, Dk).
        mask: bool, broadcastable to (..., T, S), True = may attend; None = no constraint.

    Returns:
        (..., T, S), fp32 or fp64; each row sums to 1, or is zero if no key is visible.
    """
    similarity = feature_map(q) @ feature_map(k).transpose(-2, -1)
    if mask is not None:
        similarity = similarity.masked_fill(~mask, 0.0)
    return similarity / similarity.sum(dim=-1, keepdim=True).clamp(min=EPS)


@_without_autocast
def explicit_linear_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute linear attention step by step, as `explicit_attention` does: the weights, then the weighted sum.

    Args:
        q, k, v: (..., T, Dk), (..., S, Dk) and (..., S, Dv).
        mask: bool, broadcastable to (..., T, S), True = may attend; None = no constraint.

    Returns:
        out (..., T, Dv).
    """
    weights = linear_attention_weights(q, k, mask)
    return (weights @ v.to(weights.dtype)).to(v.dtype)


@_without_autocast
def recurrent_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal linear attention as a recurrence: one state of fixed size, written and read token by token.

    Args:
        q, k, v: (..., T, Dk), (..., T, Dk) and (..., T, Dv).

    Returns:
        out (..., T, Dv).
    """
    phi_q, phi_k = feature_map(q), feature_map(k)
    state = phi_k.new_zeros(*k.shape[:-2], k.shape[-1], v.shape[-1])  # (..., Dk, Dv)
    total = phi_k.new_zeros(*k.shape[:-2], k.shape[-1])  # (..., Dk)
    out = []
    for t in range(q.shape[-2]):
        state = state + phi_k[..., t, :, None] * v[..., t, None, :]
        total = total + phi_k[..., t, :]
        numerator = (phi_q[..., t, :, None] * state).sum(dim=-2)  # (..., Dv)
        denominator = (phi_q[..., t, :] * total).sum(dim=-1, keepdim=True)
        out.append(numerator / denominator.clamp(min=EPS))
    return torch.stack(out, dim=-2).to(v.dtype)


@_without_autocast
def chunked_linear_attention(q: Tensor, k: Tensor, v: Tensor, *, chunk: int = 64) -> Tensor:
    """Compute causal linear attention in parallel: matrix products within chunks of the sequence, the state between.

    Args:
        q, k, v: (..., T, Dk), (..., T, Dk) and (..., T, Dv).
        chunk: tokens per chunk L.

    Returns:
        out (..., T, Dv).
    """
    T = q.shape[-2]
    L = min(chunk, T)
    phi_q, phi_k = feature_map(q), feature_map(k)
    denominator = (phi_q * running_sum(phi_k, -2)).sum(dim=-1, keepdim=True)  # (..., T, 1)

    def cut(x: Tensor) -> Tensor:  # (..., T, D) -> (..., N, L, D), N chunks; the last one is filled up with zeros
        return F.pad(x, (0, 0, 0, -T % L)).unflatten(-2, (-1, L))

    phi_q, phi_k, values = cut(phi_q), cut(phi_k), cut(v.to(phi_k.dtype))
    written = phi_k.transpose(-2, -1) @ values  # (..., N, Dk, Dv): what each chunk adds to the state
    before = F.pad(running_sum(written, -3)[..., :-1, :, :], (0, 0, 0, 0, 1, 0))  # the state at each chunk's start
    within = (phi_q @ phi_k.transpose(-2, -1)).tril() @ values
    numerator = (within + phi_q @ before).flatten(-3, -2)[..., :T, :]
    return (numerator / denominator.clamp(min=EPS)).to(v.dtype)
