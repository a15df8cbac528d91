"""Root mean square norm: a layer norm that does not subtract the mean."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.cpu_norm import RMSNormOnCPU, nothing_is_rounded


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector to a mean square of 1, then each of its elements: x / sqrt(mean(x^2) + eps) * weight.

    It is computed in fp32 at least and rounded to x's dtype before the weight multiplies it, as in Llama and Qwen.

    Args:
        x: (..., C); the result has its shape and dtype.
        weight: (C,), or of more of x's last dimensions: (H, D) for x (..., H, D).
        eps: added to the mean square.

    Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # the same, with a faster backward pass
        return RMSNormOnCPU.apply(x, weight, eps)
    if nothing_is_rounded(x, weight):  # one kernel, which stores only x for the backward pass
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    with torch.autocast(x.device.type, enabled=False):  # on a GPU autocast would store a copy of x in fp32
        y = F.rms_norm(x, x.shape[-1:], eps=eps)
    return (weight * y).to(x.dtype)  # a weight in fp32, as under autocast, would make it fp32


class RMSNorm(nn.Module):
    """`rms_norm` as a layer."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class QueryKeyRMSNorm(nn.Module):
    """`rms_norm` of queries and keys, head by head, in one pass: one weight for all queries, another for all keys.

    Source: Henry et al. 2020, "Query-Key Normalization"; with these weights as in Qwen3.
    """

    def __init__(self, n_head: int, n_kv_head: int, head_dim: int, eps: float):
        super().__init__()
        self.heads, self.eps = (n_head, n_kv_head), eps
        self.q_weight = nn.Parameter(torch.ones(head_dim))
        self.k_weight = nn.Parameter(torch.ones(head_dim))

    def forward(self, qk: Tensor) -> Tensor:
        """Normalise (B, T, H + G, D): the H heads of queries, then the G heads of keys."""
        H, G = self.heads
        return rms_norm(qk, torch.cat([self.q_weight.expand(H, -1), self.k_weight.expand(G, -1)]), self.eps)
