"""Attention as functions of q, k, v: one to read (explicit), one to run (fused). They agree.

Shapes: q (..., T, Dk), k (..., S, Dk), v (..., S, Dv); out (..., T, Dv); weights (..., T, S).
Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.constants import causal_bias
from minigpt.attention.dropout import dropout
from minigpt.attention.masks import Documents, causal_mask, combine_masks

WHOLE, BLOCKS = 256, 4  # explicit causal attention: more than WHOLE queries are computed in BLOCKS blocks


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return how much each query attends to each key: softmax(q k^T / sqrt(Dk)).

    Hidden scores become minus infinity BEFORE the softmax, since exp(-inf) = 0 (a score of 0 would
    not hide anything: exp(0) = 1). A query without any visible key gets weights of zero.

    Args:
        q, k: (..., T, Dk) and (..., S, Dk).
        mask: bool, broadcastable to (..., T, S), True = may attend; None = no constraint.

    Returns:
        (..., T, S); each row with at least one key to attend sums to 1.
    """
    require_one_width(q, k)
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
    if mask is None:
        return scores.softmax(dim=-1)
    # A row without any key would be softmax(-inf, ..., -inf) = 0 / 0: it is computed from its unmasked scores, then
    # set to zero, so that no NaN arises on the way, forward or backward.
    nothing = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~(mask | nothing), -math.inf)
    return scores.softmax(dim=-1).masked_fill(nothing, 0.0)


def explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute attention step by step: the weights, then the weighted sum of the values.

    Args:
        q, k, v: (..., T, Dk), (..., S, Dk) and (..., S, Dv); Dv may differ from Dk.
        mask: bool, broadcastable to (..., T, S), True = may attend; None = no constraint.
        dropout_p: probability of dropping a weight.

    Returns:
        out (..., T, Dv) and the weights (..., T, S) before dropout.
    """
    weights = attention_weights(q, k, mask)
    out = dropout(weights, dropout_p) @ v
    return out, weights


def explicit_causal_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0) -> Tensor:
    """Compute `explicit_attention` under the causal mask with fewer passes over the scores, for training.

    Every query sees at least its own key, so masking is one sum with a bias of 0 and minus infinity. The queries are
    scaled instead of the scores, which are more numbers. Long sequences are computed in blocks of queries: no score is
    computed for the keys after a block. (Compiled code is faster without blocks.)

    Args:
        q, k, v: (..., T, Dk), (..., S, Dk) and (..., S, Dv), S >= T.
        dropout_p: probability of dropping a weight.

    Returns:
        out (..., T, Dv).
    """
    T, S = q.shape[-2], k.shape[-2]
    q = q / math.sqrt(k.shape[-1])
    rows = T if T <= WHOLE or torch.compiler.is_compiling() else math.ceil(T / BLOCKS)
    outs = []
    for begin in range(0, T, rows):
        end = min(begin + rows, T)
        seen = S - T + end  # keys
        scores = q[..., begin:end, :] @ k[..., :seen, :].transpose(-2, -1)
        bias = causal_bias(T, S, scores.device, scores.dtype)[begin:end, :seen]
        weights = (scores + bias).softmax(dim=-1)
        outs.append(dropout(weights, dropout_p) @ v[..., :seen, :])
    return torch.cat(outs, dim=-2)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False, dropout_p: float = 0.0
) -> Tensor:
    """Compute the same attention in one kernel, which never writes the T x S weights to memory.

    Args:
        q, k, v: (..., T, Dk), (..., S, Dk) and (..., S, Dv).
        mask: as in `explicit_attention`.
        causal: apply `causal_mask(T, S)` as well.
        dropout_p: probability of dropping a weight.

    Returns:
        out (..., T, Dv).

    Source: Dao et al. 2022, "FlashAttention"; torch.nn.functional.scaled_dot_product_attention.
    """
    require_one_width(q, k)
    T, S = q.shape[-2], k.shape[-2]
    if mask is None and (not causal or T == S):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout_p)
    mask = combine_masks(mask, causal_mask(T, S, device=q.device) if causal else None)
    assert mask is not None
    mask = torch.atleast_2d(mask)  # the kernel wants a row dimension
    nothing = ~mask.any(dim=-1, keepdim=True)  # rows without any visible key: their output is set to 0
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | nothing, dropout_p=dropout_p)
    return out.masked_fill(nothing, 0.0)


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """Compute causal attention document by document in one kernel: scores between documents are never computed.

    Args:
        q, k, v: (B, H, T, D); `varlen_fits` must accept their device, dtype and D.
        documents: of the B sequences.

    Returns:
        out (B, H, T, D).

    Source: Dao 2023, "FlashAttention-2"; torch.nn.attention.varlen.
    """
    from torch.nn.attention.varlen import varlen_attn

    B, H, T, D = q.shape
    dtype = _kernel_dtype(q)
    q, k, v = (x.transpose(1, 2).reshape(B * T, H, D).to(dtype) for x in (q, k, v))  # the sequences end to end
    out = varlen_attn(q, k, v, documents.starts, documents.starts, T, T, window_size=(-1, 0))  # looks back only
    assert isinstance(out, Tensor)
    return out.view(B, T, H, D).transpose(1, 2)


def varlen_fits(x: Tensor, D: int) -> bool:
    """Return whether `varlen_attention` supports x with heads of width D: 16 bits on an NVIDIA GPU since Ampere."""
    if not x.is_cuda or _kernel_dtype(x) not in (torch.float16, torch.bfloat16) or D % 8 or D > 256:
        return False
    return torch.version.cuda is not None and torch.cuda.get_device_properties(x.device).major >= 8


def _kernel_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that x has in a kernel on a GPU, under autocast or without."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def require_one_width(q: Tensor, k: Tensor) -> None:
    """Refuse queries and keys of different widths."""
    if q.shape[-1] != k.shape[-1]:
        got = f"queries of width {q.shape[-1]} and keys of width {k.shape[-1]}"
        raise ValueError(f"attention: got {got}; wanted the same width: project both to one d_k")


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """Cut the width into heads FIRST, then bring the heads forward: (B, T, H * D) -> (B, H, T, D).

    A view as (B, H, T, D) would have the right shape and the wrong contents: it mixes tokens.
    """
    B, T, C = x.shape
    return x.view(B, T, n_head, C // n_head).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Lay the heads side by side, the inverse of `split_heads`: (B, H, T, D) -> (B, T, H * D)."""
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D)


def repeat_heads(x: Tensor, n_head: int) -> Tensor:
    """Give each of n_head query heads its group's keys or values: (B, G, S, D) -> (B, n_head, S, D).

    The first n_head / G query heads share head 0 of x, the next ones head 1, and so on.

    Source: Ainslie et al. 2023, "GQA".
    """
    return x if x.shape[1] == n_head else x.repeat_interleave(n_head // x.shape[1], dim=1)


def head_width(n_embd: int, n_head: int) -> int:
    """Return the width of a head, D = n_embd / n_head.

    Raises:
        ValueError: if n_head does not divide n_embd.
    """
    if n_head < 1 or n_embd % n_head:
        below = n_embd - n_embd % max(n_head, 1)
        wanted = f"a width that the heads divide: n_embd={below or n_head} or n_embd={below + n_head}"
        raise ValueError(f"attention: got n_embd={n_embd} and n_head={n_head}; wanted {wanted}")
    return n_embd // n_head
