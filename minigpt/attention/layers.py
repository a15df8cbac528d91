"""Attention layers: projections around the functions of functional.py and linear.py."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from minigpt.attention.constants import angles_from_zero, kept_causal_mask
from minigpt.attention.dropout import dropout
from minigpt.attention.functional import (
    attention_weights,
    explicit_attention,
    explicit_causal_attention,
    fused_attention,
    head_width,
    merge_heads,
    repeat_heads,
    split_heads,
    varlen_attention,
    varlen_fits,
)
from minigpt.attention.linear import chunked_linear_attention, explicit_linear_attention, linear_attention_weights
from minigpt.attention.masks import Documents, causal_mask, combine_masks, document_mask
from minigpt.attention.norms import QueryKeyRMSNorm
from minigpt.attention.rotary import THETA, Llama3Scaling, angles, turn


class SelfAttention(nn.Module):
    """One head of self-attention, written to be read: three projections, the scores, the weighted sum.

    Args:
        d_in: width of the tokens.
        d_k: width of queries and keys.
        d_v: width of values.
        causal: attend to earlier tokens only.

    Source: Vaswani et al. 2017, section 3.2.1.
    """

    def __init__(self, d_in: int, d_k: int, d_v: int, causal: bool = False):
        super().__init__()
        self.causal = causal
        self.W_q = nn.Linear(d_in, d_k, bias=False)
        self.W_k = nn.Linear(d_in, d_k, bias=False)
        self.W_v = nn.Linear(d_in, d_v, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: (..., T, d_in).
            mask: bool, broadcastable to (..., T, T), True = may attend; combined with the causal mask, if any.

        Returns:
            out (..., T, d_v) and the weights (..., T, T).
        """
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        causal = causal_mask(x.shape[-2], device=x.device) if self.causal else None
        return explicit_attention(q, k, v, combine_masks(causal, mask))


Angles = tuple[Tensor, Tensor]  # cosines and sines, broadcastable to (B, T, H, D/2): see rotary.py
Mask = Tensor | Documents | None  # in addition to the causal mask; None = nothing
# A layer's KV cache: takes new keys and values, (B, G, T, D) each; returns the old and the new ones, (B, G, S, D) each.
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _narrowed(mask: Mask, q: Tensor, k: Tensor) -> Tensor | None:
    """Combine the causal and the given mask. The T queries are the last of S, so a single query sees all keys."""
    T, S = q.shape[-2], k.shape[-2]
    mask = document_mask(mask.positions) if isinstance(mask, Documents) else mask
    return combine_masks(kept_causal_mask(T, S, device=q.device) if T > 1 else None, mask)


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout_p: float) -> Tensor:
    if mask is None and q.shape[-2] > 1:
        return explicit_causal_attention(q, k, v, dropout_p=dropout_p)
    return explicit_attention(q, k, v, _narrowed(mask, q, k), dropout_p=dropout_p)[0]


def _linear(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout_p: float) -> Tensor:
    """Compute linear attention without dropout: in chunks without mask and cache, else by weights."""
    if mask is None and q.shape[-2] == k.shape[-2]:
        return chunked_linear_attention(q, k, v)
    return explicit_linear_attention(q, k, v, _narrowed(mask, q, k))


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout_p: float) -> Tensor:
    if isinstance(mask, Documents):
        return varlen_attention(q, k, v, mask)
    return fused_attention(q, k, v, mask, causal=q.shape[-2] > 1, dropout_p=dropout_p)


# Two ways to the same numbers, both causal. Which is faster depends on device, dtype and size.
KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor, Mask, float], Tensor]] = {
    "explicit": _explicit,
    "fused": _fused,
}

# Norms of queries and keys, head by head, before rotation, (B, T, H + G, D) -> the same: a constructor from H, G
# and D.
QK_NORMS: dict[str, Callable[..., nn.Module]] = {
    "layernorm": lambda H, G, D, eps: nn.LayerNorm(D, eps, elementwise_affine=False),
    "rmsnorm": QueryKeyRMSNorm,
}


class CausalSelfAttention(nn.Module):
    """The GPT's attention: H heads of width D look back over the sequence at once.

    It is always causal: a mask can only hide more.

    Args:
        n_embd: width C of the input and output.
        n_head: heads H of queries.
        n_kv_head: heads G of keys and values, each shared by H / G heads of queries; None = H.
        head_dim: D; None = C / H.
        rotary: turn queries and keys by their positions (see rotary.py): the layer then knows the order.
        rope_theta: rotary only: the base of its angles.
        rope_scaling: rotary only: how the angles are scaled; None = not at all.
        qk_norm: how queries and keys are normalised, head by head: None or a name in QK_NORMS.
        norm_eps: of that norm.
        bias: biases of queries, keys and values.
        out_bias: bias of the output projection; None = as `bias`.
        dropout: on the attention weights and after the output projection.
        kernel: how softmax attention is computed, "explicit" or "fused".
        linear: linear attention instead of softmax (see linear.py), whose weights are never dropped.

    Raises:
        ValueError: for sizes that don't fit each other.

    Source: Vaswani et al. 2017, section 3.2.2; Radford et al. 2019 (GPT-2); Su et al. 2021, "RoFormer"; Ainslie et
        al. 2023, "GQA"; Henry et al. 2020, "Query-Key Normalization"; Katharopoulos et al. 2020.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        n_kv_head: int | None = None,
        head_dim: int | None = None,
        rotary: bool = False,
        rope_theta: float = THETA,
        rope_scaling: Llama3Scaling | None = None,
        qk_norm: str | None = None,
        norm_eps: float = 1e-5,
        bias: bool = True,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        kernel: str = "fused",
        linear: bool = False,
    ):
        super().__init__()
        self.n_head = n_head
        self.n_kv_head = n_head if n_kv_head is None else n_kv_head
        self.head_dim = head_width(n_embd, n_head) if head_dim is None else head_dim
        self.rotary, self.rope, self.dropout = rotary, (rope_theta, rope_scaling), dropout
        _refuse_misfits(self, n_embd)
        self.attend = _linear if linear else KERNELS[kernel]
        self.weights_of = linear_attention_weights if linear else attention_weights
        # W_q, W_k, W_v stacked: one product instead of three
        self.qkv = nn.Linear(n_embd, (n_head + 2 * self.n_kv_head) * self.head_dim, bias=bias)
        self.qk_norm = QK_NORMS[qk_norm](n_head, self.n_kv_head, self.head_dim, norm_eps) if qk_norm else None
        self.out = nn.Linear(n_head * self.head_dim, n_embd, bias=bias if out_bias is None else out_bias)

    def project(self, x: Tensor, angles: Angles | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, T, D) and k, v (B, G, T, D) of x (B, T, C); q and k normalised and rotated if configured."""
        B, T, _ = x.shape
        H, G, D = self.n_head, self.n_kv_head, self.head_dim
        qkv = self.qkv(x).view(B, T, H + 2 * G, D)
        if self.rotary or self.qk_norm:
            qk, v = qkv.split([H + G, G], dim=2)
            q, k = self.norm_and_turn(qk, angles).split([H, G], dim=2)
        else:
            q, k, v = qkv.split([H, G, G], dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def norm_and_turn(self, qk: Tensor, angles: Angles | None) -> Tensor:
        """Normalise and turn queries and keys together, (B, T, H + G, D): one pass instead of two."""
        if self.qk_norm:
            qk = self.qk_norm(qk)
        if self.rotary:
            cos, sin = angles or angles_from_zero(qk.shape[1], self.head_dim, qk.device, qk.dtype, *self.rope)
            qk = turn(qk, cos.to(qk.dtype), sin.to(qk.dtype))
        return qk

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """Return the angles of positions (B, T) or (T,), broadcastable to (B, T, H, D/2): once for all layers."""
        return angles(positions[..., None], self.head_dim, dtype, *self.rope)

    def document_mask(self, documents: Documents, like: Tensor) -> Tensor | Documents:
        """Return a mask for `forward` that keeps attention within documents, once for all layers.

        It is `documents` itself if a kernel handles documents (this depends on device and dtype of `like`).
        """
        dropout = self.dropout if self.training else 0.0
        one_by_one = self.attend is _fused and not dropout and varlen_fits(like, self.head_dim)
        return documents if one_by_one else document_mask(documents.positions)

    def read(self, x: Tensor, cache: Store | None, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries (B, H, T, D) of x, and the keys and values (B, H, S, D) that the cache then holds."""
        if self.rotary and cache is not None and angles is None:
            raise ValueError("rotary attention: got a cache without angles; wanted those of the new tokens' positions")
        q, k, v = self.project(x, angles)
        if cache is not None:
            k, v = cache(k, v)  # (B, G, S, D)
        return q, repeat_heads(k, self.n_head), repeat_heads(v, self.n_head)

    def forward(self, x: Tensor, mask: Mask = None, cache: Store | None = None, angles: Angles | None = None) -> Tensor:
        """Attend.

        Args:
            x: (B, T, C), the last T of S tokens, the cached ones included.
            mask: bool, broadcastable to (B, H, T, S), True = may attend; combined with the causal mask. Or what
                `document_mask` returned.
            cache: earlier keys and values; the new ones are appended to it.
            angles: rotary only: cosines and sines of the T positions; None = positions 0 .. T - 1.

        Returns:
            (B, T, C).
        """
        q, k, v = self.read(x, cache, angles)
        out = self.attend(q, k, v, mask, self.dropout if self.training else 0.0)
        return dropout(self.out(merge_heads(out)), self.dropout, training=self.training)

    def weights(self, x: Tensor, mask: Mask = None, cache: Store | None = None, angles: Angles | None = None) -> Tensor:
        """Return the weights (B, H, T, S) of `forward`, before dropout: for `record_attention`."""
        q, k, _ = self.read(x, cache, angles)
        return self.weights_of(q, k, _narrowed(mask, q, k))


def _refuse_misfits(layer: CausalSelfAttention, n_embd: int) -> None:
    """Refuse sizes of a CausalSelfAttention that don't fit together, and name sizes that would."""
    H, G, D = layer.n_head, layer.n_kv_head, layer.head_dim
    if G < 1 or H % G:
        fitting = [number for number in range(1, H + 1) if H % number == 0]
        raise ValueError(f"attention: got n_head={H} and n_kv_head={G}; wanted a divisor of n_head: one of {fitting}")
    if layer.rotary and D % 2:
        got = f"n_embd={n_embd} and n_head={H}, heads of odd width {D}"
        remedy = f"n_embd={n_embd + H} or head_dim={D + 1}"
        raise ValueError(f"rotary attention: got {got}; wanted an even width: {remedy}")


class CrossAttention(nn.Module):
    """Multi-head attention from one sequence to another (the context) of any length and width.

    If the context is the sequence itself, it is an encoder's self-attention in both directions.

    Args:
        n_embd: width C of the input and output.
        n_head: heads H.
        d_context: width of the context.
        bias: biases in the projections.

    Source: Vaswani et al. 2017, section 3.2.3.
    """

    def __init__(self, n_embd: int, n_head: int, d_context: int, *, bias: bool = True):
        super().__init__()
        head_width(n_embd, n_head)
        self.n_head = n_head
        self.q = nn.Linear(n_embd, n_embd, bias=bias)
        self.kv = nn.Linear(d_context, 2 * n_embd, bias=bias)  # from the context's width to that of the queries
        self.out = nn.Linear(n_embd, n_embd, bias=bias)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, T, D) of x (B, T, C), and k, v (B, H, S, D) of the context (B, S, d_context)."""
        k, v = self.kv(context).chunk(2, dim=-1)
        return split_heads(self.q(x), self.n_head), split_heads(k, self.n_head), split_heads(v, self.n_head)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: (B, T, C), makes the queries.
            context: (B, S, d_context), makes the keys and values.
            mask: bool, broadcastable to (B, H, T, S), e.g. the context's `padding_mask`; None = no constraint.

        Returns:
            (B, T, C).
        """
        q, k, v = self.project(x, context)
        return self.out(merge_heads(fused_attention(q, k, v, mask)))

    def weights(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights (B, H, T, S) that `forward` gives to the values: for `record_attention`."""
        q, k, _ = self.project(x, context)
        return attention_weights(q, k, mask)


# The GPT's attention by name (model.attention=...), and the names that need no position embedding.
ATTENTION: dict[str, Callable[..., nn.Module]] = {
    "softmax": CausalSelfAttention,
    "rotary": partial(CausalSelfAttention, rotary=True),
    "linear": partial(CausalSelfAttention, linear=True),
}
KNOW_POSITIONS = frozenset({"rotary"})
