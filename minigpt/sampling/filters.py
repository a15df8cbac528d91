"""Filters of the next token's logits: pure functions, logits (B, V) in, logits (B, V) out.

A token that is ruled out gets minus infinity; the likeliest token is never ruled out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

NUCLEUS = 512  # likeliest tokens: they usually cover top_p, and finding them is much faster than a full sort


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling. Their ranges are checked in config/schema.py, not here."""

    max_new_tokens: int = 256
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 1337
    stop: Sequence[str] = ()


def options_of(config: Any) -> SamplingOptions:
    """Return the sampling options among a command's settings; options that the command lacks have their defaults."""
    names = [field.name for field in fields(SamplingOptions)]
    return SamplingOptions(**{name: getattr(config, name) for name in names if hasattr(config, name)})


def filter_rows(logits: Tensor, seen: Tensor | None, options: Sequence[SamplingOptions]) -> Tensor:
    """Apply `filter_logits` with options for each row: all rows together if they have the same filters."""
    filters = [(o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty) for o in options]
    if filters.count(filters[0]) == len(filters):
        return filter_logits(logits, seen, options[0])
    rows = zip(logits.split(1), seen.split(1) if seen is not None else [None] * len(logits), options, strict=True)
    return torch.cat([filter_logits(*row) for row in rows])


def filter_logits(logits: Tensor, seen: Tensor | None, options: SamplingOptions) -> Tensor:
    """Apply all filters, in this order: repetition penalty, temperature, top-k, top-p, min-p.

    The penalty comes first because it corrects the model's own scores. Top-p and min-p work on the probabilities
    after the temperature, among the tokens that are still left.

    `seen` (B, V) bool are the tokens already in each row's text; None if there is no penalty.
    """
    if seen is not None:
        logits = repetition_penalty(logits, seen, options.repetition_penalty)
    logits = temperature(logits, options.temperature)
    logits = top_k(logits, options.top_k)
    logits = top_p(logits, options.top_p)
    return min_p(logits, options.min_p)


def repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make each token that the text holds less likely, once: divide positive logits, multiply negative ones.

    Source: Keskar et al. 2019, "CTRL", section 4.1; the split by sign is Hugging Face's, without which a
    penalty would help tokens with negative logits.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def temperature(logits: Tensor, value: float) -> Tensor:
    """Sharpen (below 1) or flatten (above 1) the distribution: logits / temperature.

    0 is the limit, greedy: only the likeliest token is left, the lowest id among equals. The result is shifted so that
    its largest value is 0, so a small temperature does not overflow.

    Source: Ackley, Hinton and Sejnowski 1985, "A Learning Algorithm for Boltzmann Machines".
    """
    if value == 0:
        return torch.full_like(logits, -math.inf).scatter(-1, logits.argmax(dim=-1, keepdim=True), 0.0)
    return (logits - logits.amax(dim=-1, keepdim=True)) / value


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k likeliest tokens, and those that tie with the k-th. 0 = off; k above V keeps all V.

    Source: Fan, Lewis and Dauphin 2018, "Hierarchical Neural Story Generation", section 5.2.
    """
    V = logits.shape[-1]
    if k == 0 or k >= V:
        return logits
    smallest_kept = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the nucleus: the fewest likeliest tokens whose sum reaches p; among equals, the lower id first. 1 = off.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    if p == 1:
        return logits
    V, total = logits.shape[-1], logits.logsumexp(dim=-1, keepdim=True)
    ordered = logits.topk(min(V, NUCLEUS), dim=-1).values
    if ordered.device.type != "cpu" or bool(((ordered - total).exp().sum(dim=-1) < p).any()):  # only a CPU may look
        ordered = logits.sort(dim=-1, descending=True).values
    before = (ordered - total).exp().cumsum(dim=-1).roll(1, dims=-1)  # probability of all likelier tokens
    before[..., 0] = 0.0  # so the likeliest is always kept
    kept = (before < p).sum(dim=-1, keepdim=True)
    smallest = ordered.gather(-1, kept - 1)
    above, equal = logits > smallest, logits == smallest
    equal &= equal.cumsum(dim=-1) <= kept - above.sum(dim=-1, keepdim=True)
    return logits.masked_fill(~(above | equal), -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Drop tokens whose probability is below p times that of the likeliest. 0 = off.

    Source: Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs".
    """
    if p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(p), -math.inf)
