"""Masks: who may attend to whom. Boolean, True = may attend, broadcastable to (B, H, T, S)."""

import torch
from torch import Tensor


def causal_mask(T: int, S: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """Each token sees itself and what came before it.

    The T queries are the LAST T of the S keys (bottom-right aligned), as with a KV cache that already
    holds S - T keys: query t sees keys 0 .. S - T + t. With S = T only what lies strictly above the
    diagonal is hidden. (torch's own `is_causal` aligns top-left, which is wrong when S > T.)

    Returns:
        (T, S) bool.

    Raises:
        ValueError: if S < T, which would leave queries without a key of their own.
    """
    S = T if S is None else S
    if S < T:
        raise ValueError(f"causal_mask: got {S} keys for {T} queries; wanted at least as many keys as queries (S >= T)")
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def padding_mask(lengths: Tensor, S: int, side: str = "right") -> Tensor:
    """Cut the columns of padded keys.

    Args:
        lengths: (B,) real keys of each row.
        S: keys per row, padding included.
        side: where the padding stands: "right" (real keys first) or "left" (real keys last).

    Returns:
        (B, 1, 1, S) bool, to be combined with other masks by `combine_masks`.

    Raises:
        ValueError: unknown side, or a length outside 0 .. S.
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_mask: got side={side!r}; wanted 'left' or 'right'")
    if lengths.numel() and not (int(lengths.min()) >= 0 and int(lengths.max()) <= S):
        raise ValueError(f"padding_mask: got lengths {lengths.tolist()}; wanted each within 0 .. {S}")
    columns = torch.arange(S, device=lengths.device)
    first = 0 if side == "right" else S - lengths[:, None]
    real = (columns >= first) & (columns < first + lengths[:, None])
    return real[:, None, None, :]


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """May attend = every mask says so (logical and). None means no constraint; all None gives None."""
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else combined & mask
    return combined
