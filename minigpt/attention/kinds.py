"""What kind of head it is: how much of its attention goes to three places, as scores from 0 to 1.

Each takes weights (..., T, T), whose rows are queries and columns keys, and returns means over queries, (...). A query
that could not tell the places apart is left out: for the second token the token before is the first one.
"""

from torch import Tensor


def previous_token(weights: Tensor) -> Tensor:
    """Return the mean attention of token i to token i - 1."""
    return weights.diagonal(-1, -2, -1)[..., 1:].mean(-1)


def first_token(weights: Tensor) -> Tensor:
    """Return the mean attention to the first token, which is an attention sink in many models (Xiao et al. 2023)."""
    return weights[..., 2:, 0].mean(-1)


def induction(weights: Tensor, period: int) -> Tensor:
    """Return the mean attention to the token after the earlier occurrence, in tokens that repeat after `period`.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads": the prefix matching score.
    """
    return weights.diagonal(1 - period, -2, -1)[..., 1:].mean(-1)
