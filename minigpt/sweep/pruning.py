"""When a trial is stopped early: pure functions of the values that trials had after equally many tokens."""

import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from minigpt.config.schema import SearchConfig
from minigpt.sweep.trial import COMPLETE, Trial


def marks(rows: Sequence[Mapping[str, Any]], every_tokens: int, metric: str) -> Iterator[tuple[int, float]]:
    """(tokens, best value so far) where trials are compared: the multiples of `every_tokens` that a run has passed.

    The last row decides nothing: it may be the run's end, and a run at its end is complete.
    """
    best, passed = math.inf, 0
    for row in rows[:-1]:
        value, tokens = row.get(metric), row.get("tokens")
        if not isinstance(value, int | float) or not isinstance(tokens, int):
            continue
        best = min(best, value)
        for mark in range(passed + 1, tokens // every_tokens + 1):
            yield mark * every_tokens, best
        passed = max(passed, tokens // every_tokens)


def is_behind(
    trial: Trial, tokens: int, value: float, *, others: Iterable[Trial], search: SearchConfig, first: int, last: int
) -> bool:
    """Whether a trial that has `value` after `tokens` is to be stopped.

    Args:
        trial: the one to judge.
        tokens: a mark.
        value: its best so far.
        others: all other trials.
        search: the pruner and its settings.
        first: the first mark.
        last: tokens of a whole run.
    """
    if search.pruner == "median":
        return is_below_median(tokens, value, others, search.startup_trials)
    if search.pruner == "hyperband":
        return is_not_promoted(trial, tokens, value, others=others, eta=search.reduction_factor, first=first, last=last)
    return False


def is_below_median(tokens: int, value: float, others: Iterable[Trial], startup: int) -> bool:
    """Whether the value is worse than the median of the complete trials at this mark. Source: Golovin 2017, 3.2.1."""
    complete = [other for other in others if other.state == COMPLETE]
    theirs = [other.curve[tokens] for other in complete if tokens in other.curve]
    return len(complete) >= startup and bool(theirs) and value > statistics.median(theirs)


def is_not_promoted(
    trial: Trial, tokens: int, value: float, *, others: Iterable[Trial], eta: int, first: int, last: int
) -> bool:
    """Whether the trial is not among the best 1/eta of its bracket that have come to this rung.

    Brackets differ in how many tokens a trial gets before it is judged for the first time.

    Source: Li et al. 2018 (Hyperband), section 3; asynchronous as in Li et al. 2020 (ASHA), algorithm 2.
    """
    brackets = bracket_count(eta, first, last)
    mine = bracket(trial.number, brackets, eta)
    if tokens not in rungs(mine, eta, first, last):
        return False
    theirs = [
        other.curve[tokens]
        for other in others
        if tokens in other.curve and bracket(other.number, brackets, eta) == mine
    ]
    reached = sorted([*theirs, value])
    return value > reached[max(len(reached) // eta, 1) - 1]


def bracket_count(eta: int, first: int, last: int) -> int:
    """How many brackets there are between the first mark and a whole run."""
    count = 1
    while first * eta**count < last:
        count += 1
    return count


def rungs(number: int, eta: int, first: int, last: int) -> list[int]:
    """The tokens at which a bracket is judged; multiples of the first mark."""
    found, rung = [], first * eta**number
    while rung < last:
        found.append(rung)
        rung *= eta
    return found


def bracket(number: int, count: int, eta: int) -> int:
    """The bracket of a trial; earlier judged ones get more trials, in Hyperband's proportions."""
    shares = [math.ceil(count * eta ** (count - 1 - place) / (count - place)) for place in range(count)]
    place = zlib.crc32(str(number).encode()) % sum(shares)
    for found, share in enumerate(shares):
        place -= share
        if place < 0:
            return found
    raise AssertionError
