"""Masks: who may attend to whom. Boolean, True = may attend, broadcastable to (B, H, T, S)."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_mask(T: int, S: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """Return the causal mask: each token attends to itself and to those before it.

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
    """Return a mask that hides padded keys.

    Args:
        lengths: (B,) real keys of each row.
        S: keys per row, padding included.
        side: where the padding stands: "right" (real keys first) or "left" (real keys last).

    Returns:
        (B, 1, 1, S) bool, to be combined with other masks by `combine_masks`.

    Raises:
        ValueError: unknown side.
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_mask: got side={side!r}; wanted 'left' or 'right'")
    columns = torch.arange(S, device=lengths.device)
    first = 0 if side == "right" else S - lengths[:, None]
    real = (columns >= first) & (columns < first + lengths[:, None])
    return real[:, None, None, :]


class Documents(NamedTuple):
    """The borders of documents in sequences, if attention stays within a document (see `find_documents`).

    Attributes:
        positions: (B, T), each token's place in its document, or in the part of it that the sequence holds.
        starts: (N + 1,) int32: where the documents begin in the concatenated sequences; unused entries are B * T.
    """

    positions: Tensor
    starts: Tensor


def find_documents(tokens: Tensor, end: int) -> Documents:
    """Find the documents in sequences: one begins with each sequence, and one after each end-of-text.

    Args:
        tokens: (B, T) on the CPU.
        end: the end-of-text token, the last of its document.

    Returns:
        The documents; N is a power of two, so that code is compiled for few lengths.
    """
    B, T = tokens.shape
    begins = F.pad(tokens[:, :-1] == end, (1, 0), value=True)
    places = torch.arange(T)
    first = (places * begins).cummax(dim=1).values  # where each token's document begins
    starts = begins.flatten().nonzero()[:, 0]
    N = 1 << (len(starts) - 1).bit_length()
    return Documents(places - first, F.pad(starts, (0, N + 1 - len(starts)), value=B * T).int())


def document_mask(positions: Tensor) -> Tensor:
    """Return a mask (B, 1, T, T) that hides the other documents, from each token's place in its document, (B, T)."""
    first = torch.arange(positions.shape[1], device=positions.device) - positions  # where its document begins
    return (first[:, :, None] == first[:, None, :])[:, None]


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Return the logical and of masks. None means no constraint; all None gives None."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(torch.logical_and, given) if given else None
