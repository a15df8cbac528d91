"""The space of a search: setting -> the values that it may have, in Optuna's words."""

import itertools
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from minigpt.config.convert import as_typed, checked_value, no_setting, settings, shown
from minigpt.config.schema import TrainConfig

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]  # searched setting -> its values
Point = dict[str, Any]  # searched setting -> value

DIGITS = 4  # drawn numbers are rounded to so many digits, so that people can type them again


def read_space(words: Mapping[str, Any], groups: Container[str], sampler: str) -> tuple[Space, list[str]]:
    """Return the space of a search, and a sentence for each thing that is wrong with it.

    Args:
        words: setting -> {low, high, log, step} or {choices}.
        groups: names of groups of config files; a group can be searched like a setting.
        sampler: with "grid" each setting needs a list of values or a range with a step.
    """
    space: Space = {}
    faults = []
    if not words and sampler != "grid":
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
    ways = ({"low", "high", "log", "step"}, {"choices"})
    if not isinstance(words, Mapping) or not any(set(words) <= way for way in ways):
        raise ValueError(f"it must be {{low, high, log or step}} or {{choices}}, got {shown(words)}.")
    kind = str if key in groups else known[key].kind
    if "choices" in words:
        return CategoricalDistribution([_checked(kind, choice, "a choice") for choice in words["choices"]])
    number = int if checked_value(kind, 1.5)[1] else float
    given = {"low": None, "high": None, **words}
    limits = {name: _checked(bool if name == "log" else number, value, name) for name, value in given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Optuna lowers `high` to the last value that the steps reach
        return IntDistribution(**limits) if number is int else FloatDistribution(**limits)


def _checked(kind: Any, value: Any, name: str) -> Any:
    value, wanted = checked_value(kind, value)
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


def points(space: Space) -> Iterator[Point]:
    """Yield the points of a grid, the last setting changing fastest; of a range without steps both ends."""
    for values in itertools.product(*(listed(kind) or (kind.low, kind.high) for kind in space.values())):  # type: ignore
        yield dict(zip(space, values, strict=True))


def overrides(point: Mapping[str, Any]) -> list[str]:
    """Return the settings of a point as `train` takes them."""
    return [f"{key}={as_typed(value)}" for key, value in point.items()]
