"""The next point to try: a pure function of the search, the trial's number and the trials before it.

So a sweep that was interrupted goes on with the trials it would have made.
"""

import itertools
import warnings
import zlib
from collections.abc import Sequence

import optuna

from minigpt.config.schema import SearchConfig
from minigpt.sweep.space import Point, Space, grid_points, rounded
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, Trial


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
