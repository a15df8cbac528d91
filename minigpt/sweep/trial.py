"""Optuna's trials in this sweep's words: their labels, the names of their states, and their ranks.

A trial's `user_attrs` hold what is known of it besides: cause, tail, values (one a seed), tokens, seconds,
tokens_per_second, same_as. Its `intermediate_values` are tokens -> best value so far, where trials are compared.
"""

import math
import statistics
from collections.abc import Sequence

from optuna.trial import FrozenTrial as Trial
from optuna.trial import TrialState

COMPLETE, PRUNED, FAILED = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
ORDER = (COMPLETE, PRUNED, TrialState.RUNNING, TrialState.WAITING, FAILED)


def state_of(trial: Trial) -> str:
    """Return the state in a word: complete, pruned, running or failed."""
    return "failed" if trial.state == FAILED else trial.state.name.lower()


def is_finished(trial: Trial) -> bool:
    """Return whether a trial has its final result."""
    return trial.state.is_finished()


def standard_error(trial: Trial) -> float | None:
    """Return the standard error of the mean over the trial's seeds; None for fewer than two."""
    values = trial.user_attrs.get("values", [])
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Sort trials: complete ones by value, then pruned ones, running ones and failed ones."""
    return sorted(trials, key=lambda trial: (ORDER.index(trial.state), trial.value or 0.0, trial.number))


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the complete trial with the lowest value (of equal ones the first), or None if no trial is complete."""
    first = next(iter(ranked(trials)), None)
    return first if first is not None and first.state == COMPLETE else None
