"""torch.compile where it was chosen, and a way back when it does not work here."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from minigpt.model.loss import autocast, next_token_loss


def compiled_loss(
    gpt: nn.Module, tokens: Tensor, targets: Tensor, *, precision: str, say: Callable[[str], None]
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Compile model and loss as one graph, and try it forward and backward once.

    Args:
        gpt: the model, on its device, in training mode.
        tokens: (B, T) a micro-batch of the size that training uses.
        targets: (B, T).
        precision: as in training.
        say: prints the sentence when compiling fails.

    Returns:
        The compiled loss, or the plain one if it can't be compiled here.
    """
    options: dict[str, Any] | None = None
    if tokens.device.type == "cpu":
        # The compiler would recognise explicit attention and put the fused kernel in its place, whose backward
        # pass is the slower one there (hardware.py chose between them).
        options = {"pattern_matcher": False}
        # Its threads would add to an embedding's gradient in the order they come, with other bits in each run.
        torch.use_deterministic_algorithms(True)
        # A debugging aid comes with it, and costs.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    compiled = torch.compile(next_token_loss, dynamic=False, options=options)
    try:
        with autocast(tokens.device.type, precision):
            loss = compiled(gpt, tokens, targets)
        loss.backward()
    except Exception as error:  # compilers fail in many ways, none of which may stop a run
        torch._dynamo.reset()
        reason = str(error).strip().splitlines()
        say(
            f"torch.compile does not work here ({type(error).__name__}: {reason[0][:200] if reason else ''}); "
            "going on without it. trainer.compile=off skips the try"
        )
        return next_token_loss
    finally:
        gpt.zero_grad(set_to_none=True)
    return compiled
