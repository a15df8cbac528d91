"""Which point is tried next, and which trial is stopped early, by Optuna's samplers and pruners.

Both are pure functions of the search, the trial's number and what the trials before have reported, so a sweep that was
interrupted goes on as it would have done.
"""

import itertools
import math
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna

from minigpt.config.schema import SearchConfig
from minigpt.sweep.space import Point, Space, grid_points, rounded
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Trial, is_finished


def propose(space: Space, search: SearchConfig, *, seed: int, number: int, trials: Sequence[Trial]) -> Point:
    """Choose the point of trial `number`.

    TPE is the tree-structured Parzen estimator. Source: Bergstra et al. 2011, section 4; multivariate as in Falkner
    et al. 2018 (BOHB), section 3.3.

    Args:
        space: what is searched.
        search: the sampler and how many of its trials are random.
        seed: of the sweep.
        number: the trial's.
        trials: the others; running ones count as places not to try again.
    """
    if search.sampler == "grid":
        return next(itertools.islice(grid_points(space), number, None))
    own_seed = zlib.crc32(f"{seed}/{number}".encode())
    known = sorted((trial for trial in trials if trial.state != FAILED), key=lambda trial: trial.number)
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(own_seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        measured = sum(trial.state in (COMPLETE, PRUNED) for trial in known)
        if search.sampler == "tpe" and measured >= search.startup_trials:
            sampler = optuna.samplers.TPESampler(
                seed=own_seed, multivariate=True, constant_liar=True, n_startup_trials=0
            )
        study = optuna.create_study(sampler=sampler)
        study.add_trials(known)
        point = study.ask(dict(space)).params
    return {key: rounded(distribution, point[key]) for key, distribution in space.items()}


def marks(rows: Sequence[Mapping[str, Any]], every_tokens: int, metric: str) -> Iterator[tuple[int, float]]:
    """Yield (tokens, best value so far) at each multiple of `every_tokens` that a run has passed.

    The last row is left out: it may be the run's end, and a run at its end is complete.
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


class Pruning:
    """Asks one of Optuna's pruners about trials, on a study in memory that repeats what they have reported.

    Optuna's Hyperband notes in its storage which rungs a trial has completed, so asking it twice changes the answer.
    The study in memory begins anew with each process, and with it the notes.

    Args:
        search: names the pruner and holds its settings.
        first: tokens at the first mark.
        last: tokens of a whole run.
    """

    def __init__(self, search: SearchConfig, *, first: int, last: int):
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if search.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=search.startup_trials)
        elif search.pruner == "hyperband":
            pruner = optuna.pruners.HyperbandPruner(first, max(first, last), search.reduction_factor)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # Hyperband's brackets follow from the study's name, which is therefore the same everywhere.
        self.study = optuna.create_study(study_name="sweep", sampler=optuna.samplers.RandomSampler(), pruner=pruner)
        self.copies: list[optuna.Trial] = []
        self.reported: set[tuple[int, int]] = set()  # number and mark
        self.told: set[int] = set()
        self.verdicts: dict[int, bool] = {}  # at each trial's last mark

    def is_behind(self, number: int, trials: Sequence[Trial]) -> bool:
        """Return whether trial `number` is to be stopped at the last mark that it has reported."""
        for trial in sorted(trials, key=lambda each: (each.number == number, each.number)):
            while len(self.copies) <= trial.number:
                self.copies.append(self.study.ask())
            copy = self.copies[trial.number]
            for tokens, value in sorted(trial.intermediate_values.items()):
                if (trial.number, tokens) not in self.reported:
                    self.reported.add((trial.number, tokens))
                    copy.report(value, tokens)
                    self.verdicts[trial.number] = copy.should_prune()
            if is_finished(trial) and trial.number not in self.told:
                self.told.add(trial.number)
                self.study.tell(copy, trial.value if trial.state == COMPLETE else None, trial.state)
        return self.verdicts.get(number, False)
