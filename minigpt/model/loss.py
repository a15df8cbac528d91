"""The loss of next-token prediction, and the precision in which it is computed.

The logits of a micro-batch, (B, T, V), and their gradients take 12 bytes for each number: with GPT-2's vocabulary more
than all activations of its smallest model. In chunks, (chunk, V) of them exist at a time. The gradients of a chunk are
taken in the forward pass, at once, so that no product is computed twice.

Source: Hsu et al. 2024, "Liger Kernel: Efficient Triton Kernels for LLM Training", section 3.2.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from minigpt.attention.masks import Documents


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager:
    """Return a context that computes matrix products in bf16 or fp16 where `precision` says so, the rest in fp32."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device, half) if half else contextlib.nullcontext()


def plain_loss(weighted: bool, chunk: int) -> Callable[..., Tensor]:
    """Return the loss of batches with weights or without; with `chunk` rows of logits at a time, or all (0)."""
    loss: Callable[..., Tensor] = weighted_loss_sum if weighted else next_token_loss
    return partial(loss, chunk=chunk) if chunk else loss


def next_token_loss(gpt: Module, tokens: Tensor, targets: Tensor, *, chunk: int = 0) -> Tensor:
    """Return the mean cross-entropy in nats of the next token, over all positions at once (teacher forcing).

    Args:
        gpt: (B, T) tokens -> (B, T, V) logits.
        tokens: (B, T).
        targets: (B, T), the tokens one place later.
        chunk: rows of logits that exist at a time, which needs a GPT as `gpt`; 0 = all of them.
    """
    if chunk:
        return gpt(tokens, readout=_in_chunks(gpt, targets, None, chunk)) / targets.numel()
    return F.cross_entropy(gpt(tokens).flatten(0, 1), targets.flatten())


def weighted_loss_sum(
    gpt: Module, tokens: Tensor, targets: Tensor, weights: Tensor, documents: Documents | None = None, *, chunk: int = 0
) -> Tensor:
    """Return the sum over all targets of weight times cross-entropy in nats.

    Divided by the sum of all weights of an optimizer step, over micro-batches and ranks, it is the step's loss.

    Args:
        gpt, tokens, targets, chunk: as for `next_token_loss`.
        weights: (B, T), how much each target counts; 0 = not at all.
        documents: those in the sequences, if attention stays within a document.
    """
    options: dict[str, Any] = {} if documents is None else {"documents": documents}
    if chunk:
        return gpt(tokens, readout=_in_chunks(gpt, targets, weights, chunk), **options)
    logits = gpt(tokens, **options)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")  # (B * T,)
    return (losses * weights.flatten().to(losses.dtype)).sum()  # not @, which autocast computes in bf16


def _in_chunks(gpt: Any, targets: Tensor, weights: Tensor | None, chunk: int) -> partial[Tensor]:
    return partial(chunked_loss_sum, targets=targets, weights=weights, vocab_size=gpt.vocab_size, chunk=chunk)


def chunked_loss_sum(
    hidden: Tensor, table: Tensor, targets: Tensor, *, weights: Tensor | None, vocab_size: int, chunk: int
) -> Tensor:
    """Compute `weighted_loss_sum` in fp32 or wider, with `chunk` rows of logits at a time.

    Args:
        hidden: (B, T, C), the output layer's input.
        table: (V or more, C), the output layer's weight; rows from V on are padding.
        targets: (B, T).
        weights: (B, T), or None if all targets count the same.
        vocab_size: V.
        chunk: rows of logits that exist at a time.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype
    wide = torch.promote_types(dtype, torch.float32)
    counts = torch.ones_like(targets, dtype=wide) if weights is None else weights.to(wide)
    rows, flat = hidden.flatten(0, -2).to(dtype), (targets.flatten(), counts.flatten())
    return _sum_and_gradients(rows, table.to(dtype), *flat, vocab_size, chunk, table.requires_grad)[0]


# A custom operator: the compiler does not look inside, and DDP can still split the compiled graph.
@torch.library.custom_op("minigpt::chunked_loss", mutates_args=())
def _sum_and_gradients(
    hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, vocab_size: int, chunk: int, learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted sum of the losses and its gradients by `hidden` (N, C) and, if it `learns`, by `table`."""
    total, by_hidden = weights.new_zeros(()), torch.empty_like(hidden)
    by_table = torch.zeros_like(table[: None if learns else 0], dtype=weights.dtype)
    rows = (hidden, targets[:, None], weights[:, None], by_hidden)
    parts = zip(*(tensor.split(chunk) for tensor in rows), strict=True)
    for x, target, weight, by_x in parts:
        scores = x @ table.T  # (chunk, padded V); the gradients reuse this memory
        scores[:, vocab_size:] = -torch.inf  # padding has no probability, and so no gradient
        losses = torch.log_softmax(scores, dim=-1, dtype=weights.dtype)
        total -= (losses.gather(-1, target) * weight).sum()
        # The gradient of a row's loss by its logits: the probabilities, minus 1 at the target.
        scores.copy_(losses.exp_().scatter_add_(-1, target, -torch.ones_like(weight)))
        torch.mm(scores, table, out=by_x).mul_(weight)
        if not learns:
            continue
        if by_table.dtype == scores.dtype:
            by_table.addmm_(scores.T, x * weight)
        else:
            by_table += scores.T @ (x * weight).to(x.dtype)
    return total, by_hidden, by_table.to(table.dtype)


@_sum_and_gradients.register_fake
def _(
    hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, vocab_size: int, chunk: int, learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return weights.new_empty(()), torch.empty_like(hidden), torch.empty_like(table[: None if learns else 0])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, by_total: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    by_hidden, by_table = (by_total * gradient for gradient in ctx.saved_tensors)
    return by_hidden, by_table if ctx.needs_input_grad[1] else None, None, None, None, None, None


_sum_and_gradients.register_autograd(_backward, setup_context=_keep)
