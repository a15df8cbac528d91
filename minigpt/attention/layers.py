"""Attention layers: projections around the functions of functional.py and linear.py."""

from collections.abc import Callable
from typing import Protocol

import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.dropout import dropout
from minigpt.attention.functional import (
    attention_weights,
    explicit_attention,
    explicit_causal_attention,
    fused_attention,
    head_width,
    merge_heads,
    split_heads,
)
from minigpt.attention.linear import chunked_linear_attention, explicit_linear_attention, linear_attention_weights
from minigpt.attention.masks import causal_mask, combine_masks
from minigpt.attention.rotary import rotate, rotate_from_zero


class SelfAttention(nn.Module):
    """One head, to learn from: three projections, the scores, the weighted sum. Five products.

    Args:
        d_in: width of the tokens.
        d_k: width of queries and keys, which are compared with each other.
        d_v: width of values, which are what a token passes on.
        causal: look back only.

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


class KeyValueStore(Protocol):
    """What a layer asks of a KV cache: take the new keys and values, give back all of them."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, T, D) new ones in, (B, H, S, D) old and new ones out."""

    def positions(self, T: int) -> Tensor:
        """(B, T): the places of each row's next T tokens."""


def _or_causal(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask, or the causal one if there is none. A single query is the last token: it sees every key."""
    T, S = q.shape[-2], k.shape[-2]
    return causal_mask(T, S, device=q.device) if mask is None and T > 1 else mask


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    if mask is None and q.shape[-2] > 1:
        return explicit_causal_attention(q, k, v, dropout_p=dropout_p)
    return explicit_attention(q, k, v, mask, dropout_p=dropout_p)[0]


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    return fused_attention(q, k, v, mask, causal=mask is None and q.shape[-2] > 1, dropout_p=dropout_p)


# Two ways to the same numbers; which is faster depends on device, dtype and size.
KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]] = {
    "explicit": _explicit,
    "fused": _fused,
}


class CausalSelfAttention(nn.Module):
    """The GPT's attention: H heads of width D = n_embd / n_head look back over the sequence at once.

    Args:
        n_embd: width C of the input and output.
        n_head: heads H.
        dropout: on the attention weights and after the output projection.
        bias: biases in the projections.
        kernel: "explicit" or "fused".

    Raises:
        ValueError: if n_head does not divide n_embd.

    Source: Vaswani et al. 2017, section 3.2.2; Radford et al. 2019 (GPT-2).
    """

    def __init__(self, n_embd: int, n_head: int, *, dropout: float = 0.0, bias: bool = True, kernel: str = "fused"):
        super().__init__()
        head_width(n_embd, n_head)  # refuses a width that the heads don't divide
        self.n_head = n_head
        self.dropout = dropout
        self.attend = KERNELS[kernel]
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=bias)  # W_q, W_k, W_v stacked: one product instead of three
        self.out = nn.Linear(n_embd, n_embd, bias=bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) -> q, k, v, each (B, H, T, D)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return split_heads(q, self.n_head), split_heads(k, self.n_head), split_heads(v, self.n_head)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueStore | None = None) -> Tensor:
        """Attend.

        Args:
            x: (B, T, C).
            mask: bool, broadcastable to (B, H, T, S); None = causal.
            cache: earlier keys and values; the new ones are appended to it.

        Returns:
            (B, T, C).
        """
        q, k, v = self.project(x)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H, S, D)
        out = self.attend(q, k, v, mask, self.dropout if self.training else 0.0)
        return dropout(self.out(merge_heads(out)), self.dropout, training=self.training)

    def weights(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueStore | None = None) -> Tensor:
        """The weights (B, H, T, S) that `forward` gives to the values, before dropout: for `record_attention`."""
        q, k, v = self.project(x)
        if cache is not None:
            k, v = cache.append(k, v)
        return attention_weights(q, k, _or_causal(mask, q, k))


class RotaryCausalSelfAttention(nn.Module):
    """Causal multi-head attention that knows the order: a GPT that chooses it adds no position embedding.

    Queries and keys are normalised, head by head, then turned by their position: see rotary.py. A turn knows distances
    only, so a token's column serves as its position, in left-padded prompts too.

    Args:
        n_embd: width C of the input and output.
        n_head: heads H; the width of each, C / H, must be even.
        dropout: on the attention weights and after the output projection.
        bias: biases in the projections.
        kernel: "explicit" or "fused".

    Raises:
        ValueError: if n_head does not divide n_embd, or heads are of odd width.

    Source: Su et al. 2021, "RoFormer"; Henry et al. 2020, "Query-Key Normalization".
    """

    def __init__(self, n_embd: int, n_head: int, *, dropout: float = 0.0, bias: bool = True, kernel: str = "fused"):
        super().__init__()
        if head_width(n_embd, n_head) % 2:
            raise ValueError(
                f"rotary attention: got n_embd={n_embd} and n_head={n_head}, heads of odd width {n_embd // n_head}; "
                f"wanted an even width: n_embd={n_embd + n_head}"
            )
        self.n_head = n_head
        self.dropout = dropout
        self.attend = KERNELS[kernel]
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.out = nn.Linear(n_embd, n_embd, bias=bias)

    def project(self, x: Tensor, cache: KeyValueStore | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) -> q, k, v, each (B, H, T, D); q and k normalised and turned, both at once."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        qk = F.layer_norm(qkv[:, :, :2], qkv.shape[-1:])  # (B, T, 2, H, D)
        qk = rotate_from_zero(qk) if cache is None else rotate(qk, cache.positions(T)[:, :, None, None])
        q, k = qk.permute(2, 0, 3, 1, 4).unbind()  # (B, H, T, D) each
        return q, k, qkv[:, :, 2].transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueStore | None = None) -> Tensor:
        """Attend: as `CausalSelfAttention.forward`."""
        q, k, v = self.project(x, cache)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H, S, D)
        out = self.attend(q, k, v, mask, self.dropout if self.training else 0.0)
        return dropout(self.out(merge_heads(out)), self.dropout, training=self.training)

    def weights(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueStore | None = None) -> Tensor:
        """The weights (B, H, T, S) that `forward` gives to the values, before dropout: for `record_attention`."""
        q, k, v = self.project(x, cache)
        if cache is not None:
            k, v = cache.append(k, v)
        return attention_weights(q, k, _or_causal(mask, q, k))


class LinearCausalSelfAttention(nn.Module):
    """Causal multi-head attention whose work grows with T instead of T^2: see linear.py.

    With neither mask nor cache it runs chunk by chunk. With one of them it writes the T x S weights down, cuts
    the hidden ones and divides each row by its sum: the same numbers where both apply. So padding, left-padded
    prompts and the KV cache work as with softmax (the cache keeps keys and values, not the state of fixed size),
    a row with nothing left to attend gives zeros, and `record_attention` shows those weights.

    Args:
        n_embd: width C of the input and output.
        n_head: heads H.
        dropout: after the output projection only: weights that are never written down can't be dropped.
        bias: biases in the projections.
        kernel: softmax attention's choice; taken so that a block can build either, without effect here.

    Raises:
        ValueError: if n_head does not divide n_embd.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs".
    """

    def __init__(self, n_embd: int, n_head: int, *, dropout: float = 0.0, bias: bool = True, kernel: str = "fused"):
        super().__init__()
        head_width(n_embd, n_head)
        self.n_head = n_head
        self.dropout = dropout
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.out = nn.Linear(n_embd, n_embd, bias=bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) -> q, k, v, each (B, H, T, D)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return split_heads(q, self.n_head), split_heads(k, self.n_head), split_heads(v, self.n_head)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueStore | None = None) -> Tensor:
        """Attend: as `CausalSelfAttention.forward`."""
        q, k, v = self.project(x)
        if mask is None and cache is None:
            out = chunked_linear_attention(q, k, v)
        else:
            if cache is not None:
                k, v = cache.append(k, v)  # (B, H, S, D)
            out = explicit_linear_attention(q, k, v, _or_causal(mask, q, k))
        return dropout(self.out(merge_heads(out)), self.dropout, training=self.training)

    def weights(self, x: Tensor, mask: Tensor | None = None, cache: KeyValueStore | None = None) -> Tensor:
        """The weights (B, H, T, S) that `forward` amounts to, written down: for `record_attention`."""
        q, k, v = self.project(x)
        if cache is not None:
            k, v = cache.append(k, v)
        return linear_attention_weights(q, k, _or_causal(mask, q, k))


class CrossAttention(nn.Module):
    """H heads look from one sequence into another, the context, of any length and width.

    With the sequence itself as context it is self-attention in both directions, as in an encoder.

    Args:
        n_embd: width C of the input and output.
        n_head: heads H.
        d_context: width of the context.
        bias: biases in the projections.

    Raises:
        ValueError: if n_head does not divide n_embd.

    Source: Vaswani et al. 2017, section 3.2.3.
    """

    def __init__(self, n_embd: int, n_head: int, d_context: int, *, bias: bool = True):
        super().__init__()
        head_width(n_embd, n_head)
        self.n_head = n_head
        self.q = nn.Linear(n_embd, n_embd, bias=bias)
        self.kv = nn.Linear(d_context, 2 * n_embd, bias=bias)  # only after it do q and k agree in width
        self.out = nn.Linear(n_embd, n_embd, bias=bias)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) and (B, S, d_context) -> q (B, H, T, D); k, v (B, H, S, D)."""
        k, v = self.kv(context).chunk(2, dim=-1)
        return split_heads(self.q(x), self.n_head), split_heads(k, self.n_head), split_heads(v, self.n_head)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: (B, T, C), what asks.
            context: (B, S, d_context), what is looked at.
            mask: bool, broadcastable to (B, H, T, S), e.g. the context's `padding_mask`; None = no constraint.

        Returns:
            (B, T, C).
        """
        q, k, v = self.project(x, context)
        return self.out(merge_heads(fused_attention(q, k, v, mask)))

    def weights(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weights (B, H, T, S) that `forward` gives to the values: for `record_attention`."""
        q, k, _ = self.project(x, context)
        return attention_weights(q, k, mask)


# The GPT's choice of attention, by name (model.attention=...), and those that need no position embedding.
ATTENTION: dict[str, type[nn.Module]] = {
    "softmax": CausalSelfAttention,
    "rotary": RotaryCausalSelfAttention,
    "linear": LinearCausalSelfAttention,
}
KNOW_POSITIONS = frozenset({"rotary"})
