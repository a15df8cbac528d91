"""The loss of next-token prediction, and the precision in which it is computed."""

import contextlib
from functools import partial
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.masks import Documents
from minigpt.model.chunked import chunked_loss_sum


def next_token_loss(gpt: nn.Module, tokens: Tensor, targets: Tensor, *, chunk: int = 0) -> Tensor:
    """Return the mean cross-entropy in nats of the next token, over all positions at once (teacher forcing).

    Args:
        gpt: (B, T) tokens -> (B, T, V) logits.
        tokens: (B, T).
        targets: (B, T), the tokens one place later.
        chunk: rows of logits that exist at a time, which needs a GPT as `gpt`; 0 = all of them.

    Returns:
        A scalar.
    """
    if chunk:
        return gpt(tokens, readout=_in_chunks(gpt, targets, None, chunk)) / targets.numel()
    return F.cross_entropy(gpt(tokens).flatten(0, 1), targets.flatten())


def weighted_loss_sum(
    gpt: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    weights: Tensor,
    documents: Documents | None = None,
    *,
    chunk: int = 0,
) -> Tensor:
    """Return the sum over all targets of weight times cross-entropy in nats.

    Divided by the sum of all weights of an optimizer step, over micro-batches and ranks, it is the step's loss.

    Args:
        gpt: (B, T) tokens -> (B, T, V) logits.
        tokens: (B, T).
        targets: (B, T), the tokens one place later.
        weights: (B, T), how much each target counts; 0 = not at all.
        documents: of the sequences, if none of them is to see another.
        chunk: as for `next_token_loss`.

    Returns:
        A scalar.
    """
    options: dict[str, Any] = {} if documents is None else {"documents": documents}
    if chunk:
        return gpt(tokens, readout=_in_chunks(gpt, targets, weights, chunk), **options)
    logits = gpt(tokens, **options)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")  # (B * T,)
    return (losses * weights.flatten().to(losses.dtype)).sum()  # not @, which autocast computes in bf16


def _in_chunks(gpt: Any, targets: Tensor, weights: Tensor | None, chunk: int) -> partial[Tensor]:
    return partial(chunked_loss_sum, targets=targets, weights=weights, vocab_size=gpt.vocab_size, chunk=chunk)


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager:
    """Return a context that computes matrix products in bf16 or fp16 where `precision` says so, the rest in fp32."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device, half) if half else contextlib.nullcontext()
