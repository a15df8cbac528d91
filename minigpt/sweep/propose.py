"""The next point to try: a pure function of the search, the trial's number and the trials before it.

So a sweep that was interrupted goes on with the trials it would have made.
"""

import random
import warnings
import zlib
from collections.abc import Sequence

import optuna

from minigpt.config.schema import SearchConfig
from minigpt.sweep.space import Axis, Point, grid_point
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, Trial

STATES = {
    RUNNING: optuna.trial.TrialState.RUNNING,
    COMPLETE: optuna.trial.TrialState.COMPLETE,
    PRUNED: optuna.trial.TrialState.PRUNED,
    FAILED: optuna.trial.TrialState.FAIL,
}


def propose(axes: Sequence[Axis], search: SearchConfig, *, seed: int, number: int, trials: Sequence[Trial]) -> Point:
    """The point of trial `number`.

    Args:
        axes: what is searched.
        search: the sampler and how many of its trials are random.
        seed: of the sweep.
        number: the trial's.
        trials: the others; running ones count as places not to try again.
    """
    if search.sampler == "grid":
        return grid_point(axes, number)
    measured = [trial for trial in trials if trial.state in (COMPLETE, PRUNED)]
    if search.sampler == "random" or len(measured) < search.startup_trials:
        chance = random.Random(f"{seed}/{number}")  # the text's hash, the same on every machine
        return {axis.key: axis.draw(chance) for axis in axes}
    return modelled(axes, trials, seed=zlib.crc32(f"{seed}/{number}".encode()))


def modelled(axes: Sequence[Axis], trials: Sequence[Trial], *, seed: int) -> Point:
    """The point that a tree-structured Parzen estimator expects most of.

    Source: Bergstra et al. 2011, section 4; multivariate as in Falkner et al. 2018 (BOHB), section 3.3.
    """
    spaces = {axis.key: distribution(axis) for axis in axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=0)
        study = study_of(axes, [trial for trial in trials if trial.state != FAILED], sampler)
    point = study.ask(spaces).params
    return {axis.key: point[axis.key] if axis.choices else axis.rounded(point[axis.key]) for axis in axes}


def study_of(
    axes: Sequence[Axis], trials: Sequence[Trial], sampler: optuna.samplers.BaseSampler | None = None
) -> optuna.Study:
    """The trials as a study in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    study.add_trials([frozen(axes, trial) for trial in sorted(trials, key=lambda trial: trial.number)])
    return study


def frozen(axes: Sequence[Axis], trial: Trial) -> optuna.trial.FrozenTrial:
    """A trial in Optuna's form."""
    return optuna.trial.create_trial(
        state=STATES[trial.state],
        value=trial.value if trial.state in (COMPLETE, PRUNED) else None,
        params=trial.params,
        distributions={axis.key: distribution(axis) for axis in axes},
        intermediate_values=trial.curve,
        user_attrs=trial.facts,
    )


def distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    """An axis in Optuna's form."""
    if axis.choices:
        return optuna.distributions.CategoricalDistribution(axis.choices)
    if axis.whole:
        return optuna.distributions.IntDistribution(
            int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1)
        )
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log, step=axis.step)


def importances(axes: Sequence[Axis], trials: Sequence[Trial]) -> dict[str, float]:
    """Each setting's share in what made the good trials good; empty while there are too few to tell.

    Source: Watanabe et al. 2023 (PED-ANOVA).
    """
    complete = [trial for trial in trials if trial.state == COMPLETE]
    if len(complete) < 8 or len({trial.value for trial in complete}) < 2 or len(axes) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return dict(optuna.importance.get_param_importances(study_of(axes, complete), evaluator=evaluator))
