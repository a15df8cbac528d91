"""The space of a search, which point is tried next, and which trial is stopped early, by Optuna's samplers and pruners.

Both decisions follow from the search, the trial's number and the reports of earlier trials, so a sweep that was
interrupted goes on as it would have done.
"""

import itertools
import math
import random
import warnings
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from minigpt.config.convert import fitted, no_setting, settings, shown
from minigpt.config.roles import with_role
from minigpt.config.schema import SearchConfig, TrainConfig
from minigpt.sweep.trial_store import COMPLETE, FAILED, PRUNED, Distribution, Point, Space, Trial, is_finished

DIGITS = 4  # drawn numbers are rounded to so many digits, so that people can type them again
MAX_CHECKED = 512  # points of a space, before the first trial


def read_space(words: Mapping[str, Any], groups: Container[str], sampler: str) -> tuple[Space, list[str]]:
    """Return the space of a search, and a sentence for each thing that is wrong with it.

    Args:
        words: setting -> {low, high, log, step} or {choices}.
        groups: names of groups of config files; a group can be searched like a setting.
        sampler: with "grid" each setting needs a list of values or a range with a step.
    """
    space: Space = {}
    faults = []
    if not words:
        example = """search.space='{"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": true}}'"""
        faults.append(f"Nothing is searched. Give a search of configs/search/ (search=lr), or your own: {example}")
    for key in words:
        try:
            space[key] = _read_setting(key, words[key], groups)
            if sampler == "grid" and listed(space[key]) is None:
                raise ValueError("a grid needs choices, or a range with a step. Give one, or search.sampler=tpe.")
        except ValueError as error:
            faults.append(f"search.space {key}: {error}")
    return space, faults


def _read_setting(key: str, words: Any, groups: Container[str]) -> Distribution:
    known = settings(TrainConfig)
    if key not in known and key not in groups:
        raise ValueError(no_setting(key, known))
    if key in with_role(TrainConfig, "watch") - {"experiment"}:
        raise ValueError("it changes nothing that a trial is measured by. Remove it from the search.")
    if not isinstance(words, Mapping) or not set(words) <= {"low", "high", "log", "step", "choices"}:
        raise ValueError(f"it must be {{low, high, log or step}} or {{choices}}, got {shown(words)}.")
    kind = str if key in groups else known[key].kind
    if "choices" in words:
        choices = words["choices"]
        if not isinstance(choices, list) or not choices or len(words) > 1:
            raise ValueError(f"choices must be a list of values and stand alone, got {shown(dict(words))}.")
        return CategoricalDistribution([_fitted(kind, choice, "a choice") for choice in choices])
    if kind is bool or fitted(kind, 1)[1]:
        raise ValueError("it takes no numbers, so it has no range. Give {choices: [...]}.")
    number = int if fitted(kind, 1.5)[1] else float
    given = {"low": None, "high": None, **words}
    limits = {name: _fitted(bool if name == "log" else number, value, name) for name, value in given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Optuna lowers `high` to the last value that the steps reach
        return IntDistribution(**limits) if number is int else FloatDistribution(**limits)


def _fitted(kind: Any, value: Any, name: str) -> Any:
    value, wanted = fitted(kind, value)
    if wanted:
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}.")
    return value


def rounded(distribution: Distribution, value: Any) -> Any:
    """Return a drawn value as it is used: a fraction with few digits, inside its range."""
    if not isinstance(distribution, FloatDistribution):
        return value
    short = float(f"{value:.{DIGITS if distribution.step is None else 12}g}")
    return min(max(short, distribution.low), distribution.high)


def listed(distribution: Distribution) -> Sequence[Any] | None:
    """Return all values of choices or of a range with steps; None for other ranges."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    low, high, step = distribution.low, distribution.high, distribution.step
    if step is None or distribution.log:
        return None
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1, distribution.step)
    return [rounded(distribution, low + place * step) for place in range(round((high - low) / step) + 1)]


def grid_size(space: Space) -> int:
    """Return the number of points of the grid."""
    return math.prod(len(listed(distribution) or ()) for distribution in space.values())


def grid_points(space: Space) -> Iterator[Point]:
    """Yield the points of a grid, the last setting changing fastest."""
    for values in itertools.product(*(listed(distribution) or () for distribution in space.values())):
        yield dict(zip(space, values, strict=True))


def points_to_check(space: Space) -> Iterator[Point]:
    """Yield all points, with both ends for a range without steps; if there are too many, a sample, always the same."""
    values = [listed(each) or (each.low, each.high) for each in space.values()]  # type: ignore[union-attr]
    chance = random.Random(0)
    combinations: Iterable[tuple] = (tuple(map(chance.choice, values)) for _ in range(MAX_CHECKED))
    if math.prod(map(len, values)) <= MAX_CHECKED:
        combinations = itertools.product(*values)
    for point in combinations:
        yield dict(zip(space, point, strict=True))


def propose(space: Space, search: SearchConfig, *, seed: int, number: int, trials: Sequence[Trial]) -> Point:
    """Choose the point of trial `number`.

    TPE is the tree-structured Parzen estimator. Source: Bergstra et al. 2011, section 4; multivariate as in Falkner
    et al. 2018 (BOHB), section 3.3.

    Args:
        space: what is searched.
        search: the sampler and how many of its trials are random.
        seed: of the sweep.
        number: the trial's.
        trials: the other trials; points of running ones are avoided.
    """
    if search.sampler == "grid":
        return next(itertools.islice(grid_points(space), number, None))
    own_seed = zlib.crc32(f"{seed}/{number}".encode())
    known = sorted((trial for trial in trials if trial.state != FAILED), key=lambda trial: trial.number)
    sampler: BaseSampler = RandomSampler(own_seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        measured = sum(trial.state in (COMPLETE, PRUNED) for trial in known)
        if search.sampler == "tpe" and measured >= search.startup_trials:
            sampler = TPESampler(seed=own_seed, multivariate=True, constant_liar=True, n_startup_trials=0)
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
    """Asks one of Optuna's pruners about trials, on a study in memory to which their reports are repeated.

    Optuna's Hyperband writes into its storage which rungs a trial has completed, so asking it twice changes the answer.
    The study in memory, and with it what Hyperband has written, begins anew with each process.

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
            # Hyperband's brackets follow from the study's name, which is therefore the same everywhere.
        self.study = optuna.create_study(study_name="sweep", sampler=RandomSampler(), pruner=pruner)
        self.copies: list[optuna.Trial] = []
        self.verdicts: dict[int, bool] = {}  # at each trial's last mark

    def is_behind(self, number: int, trials: Sequence[Trial]) -> bool:
        """Return whether trial `number` is to be stopped at the last mark that it has reported."""
        while len(self.copies) <= max(trial.number for trial in trials):
            self.copies.append(self.study.ask())
        known = self.study.get_trials(deepcopy=False)
        for trial in sorted(trials, key=lambda each: (each.number == number, each.number)):
            copy, before = self.copies[trial.number], known[trial.number]
            for tokens in sorted(trial.intermediate_values.keys() - before.intermediate_values):
                copy.report(trial.intermediate_values[tokens], tokens)
                self.verdicts[trial.number] = copy.should_prune()
            if is_finished(trial) and not is_finished(before):
                self.study.tell(copy, trial.value if trial.state == COMPLETE else None, trial.state)
        return self.verdicts.get(number, False)
