"""The loss without all of its logits in memory: a chunk of rows at a time is made and turned into gradients.

The logits of a micro-batch, (B, T, V), and their gradients take 12 bytes for each number: with GPT-2's vocabulary more
than all activations of its smallest model. Here (chunk, V) of them exist at a time. The gradients of a chunk are taken
in the forward pass, at once, so that no product is computed twice.

Source: Hsu et al. 2024, "Liger Kernel: Efficient Triton Kernels for LLM Training", section 3.2.
"""

from typing import Any

import torch
from torch import Tensor


def chunked_loss_sum(
    hidden: Tensor, table: Tensor, targets: Tensor, *, weights: Tensor | None, vocab_size: int, chunk: int
) -> Tensor:
    """Return the sum over all targets of weight times cross-entropy in nats, as `weighted_loss_sum` does.

    Args:
        hidden: (B, T, C), what the output layer reads.
        table: (V or more, C), the output layer's weight; rows from V on are padding.
        targets: (B, T).
        weights: (B, T), or None if all targets count the same.
        vocab_size: V.
        chunk: rows of logits that exist at a time.

    Returns:
        A scalar, in fp32 or wider.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype
    wide = torch.promote_types(dtype, torch.float32)
    counts = torch.ones_like(targets, dtype=wide) if weights is None else weights.to(wide)
    rows, flat = hidden.flatten(0, -2).to(dtype), (targets.flatten(), counts.flatten())
    return _sum_and_gradients(rows, table.to(dtype), *flat, vocab_size, chunk, table.requires_grad)[0]


# An operator of its own, so that the compiler takes it as one, and DDP's cuts of a compiled graph stay possible.
@torch.library.custom_op("minigpt::chunked_loss", mutates_args=())
def _sum_and_gradients(
    hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, vocab_size: int, chunk: int, learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weighted sum of the losses and its gradients by `hidden` (N, C) and, if it `learns`, by `table`."""
    total = weights.new_zeros(())
    by_hidden, by_table = (
        torch.empty_like(hidden),
        torch.zeros_like(table[: None if learns else 0], dtype=weights.dtype),
    )
    parts = zip(*(each.split(chunk) for each in (hidden, targets[:, None], weights[:, None], by_hidden)), strict=True)
    for x, target, weight, by_x in parts:
        scores = x @ table.T  # (chunk, padded V), whose memory the gradients take
        scores[:, vocab_size:] = -torch.inf  # padding has no probability, and so no gradient
        losses = torch.log_softmax(scores, dim=-1, dtype=weights.dtype)
        total -= (losses.gather(-1, target) * weight).sum()
        # A row's loss by its logits: their probabilities, less 1 at the target.
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
    by_hidden, by_table = (by_total * each for each in ctx.saved_tensors)
    return by_hidden, by_table if ctx.needs_input_grad[1] else None, None, None, None, None, None


_sum_and_gradients.register_autograd(_backward, setup_context=_keep)
