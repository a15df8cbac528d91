"""Scores that show the kind of an attention head: how much of its attention goes to three places, from 0 to 1.

Each function takes weights (..., T, T), with queries as rows and keys as columns, and returns means over queries,
(...). Queries for which two of the places coincide are left out: the token before the second token is the first.
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
