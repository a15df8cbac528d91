"""Drawing a token, with random numbers that are a function of (seed, sample, position) and nothing else.

There is no generator with a state, so a sample does not depend on other texts or on earlier draws.
"""

import torch
from torch import Tensor

from minigpt.seeds import GOLDEN, MASK_64, scramble


def uniform(seed: int, sample: int, position: int) -> float:
    """Return the random number behind one token, evenly spread over [0, 1).

    Args:
        seed: of the text; `minigpt sample` derives it from the user's seed and the prompt.
        sample: which of its prompt's samples this is, from 0.
        position: where the token will stand in the whole text, prompt included, from 0.
    """
    state = 0
    for number in (seed, sample, position):
        state = scramble(((state ^ (number & MASK_64)) + GOLDEN) & MASK_64)
    return (state >> 11) * 2.0**-53  # the 53 bits a double holds


def sample_tokens(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token per row: the first whose cumulative probability exceeds the row's random number.

    The sum runs over the vocabulary in order and in double precision, so a row's token depends on nothing but its own
    logits and number, and not on its neighbours.

    Args:
        logits: (B, V), fp64; minus infinity = impossible, but at least one token per row is possible.
        uniforms: (B,) fp64 in [0, 1), on the same device.
    """
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    # The sum may miss 1 by rounding, so the number is scaled to it. At most 1 - 2^-53, it stays below the total.
    return torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]
