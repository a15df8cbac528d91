"""What is searched: settings of minigpt train, each with a range or a list of choices."""

import itertools
import json
import math
import random
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from minigpt.config.convert import fitted, no_setting, settings, shown
from minigpt.config.roles import with_role
from minigpt.config.schema import TrainConfig

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]  # searched setting -> its values
Point = dict[str, Any]  # searched setting -> value

DIGITS = 4  # a drawn number is rounded to so many, so that people can type it again
MAX_GRID_POINTS = 100_000
MAX_CHECKED = 512


def read_space(words: Mapping[str, Any], groups: Container[str], sampler: str) -> tuple[Space, list[str]]:
    """Return the space of a search, and what is wrong with it, a sentence each.

    Args:
        words: setting -> {low, high, log, step} or {choices}.
        groups: names of groups of config files; a group can be searched like a setting.
        sampler: a grid needs settings with a number of values.
    """
    space: Space = {}
    faults = []
    if not words:
        faults.append(
            "Nothing is searched. Give a search of configs/search/ (search=lr), or a space of your own: "
            """search.space='{"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": true}}'"""
        )
    for key in words:
        try:
            space[key] = _read_setting(key, words[key], groups)
            if sampler == "grid" and listed(space[key]) is None:
                raise ValueError("a grid needs choices, or a range with a step. Give one, or search.sampler=tpe")
        except ValueError as error:
            faults.append(f"search.space {key}: {error}.".replace("?.", "?"))
    if sampler == "grid" and not faults and grid_size(space) > MAX_GRID_POINTS:
        faults.append(f"The grid has more than {MAX_GRID_POINTS:,} points. Use fewer, or search.sampler=random.")
    return space, faults


def _read_setting(key: str, words: Any, groups: Container[str]) -> Distribution:
    known = settings(TrainConfig)
    if key not in known and key not in groups:
        raise ValueError(no_setting(key, known).rstrip("."))
    if key in with_role(TrainConfig, "watch") - {"experiment"}:
        raise ValueError("it changes nothing that a trial is measured by. Remove it from the search")
    if not isinstance(words, Mapping) or not set(words) <= {"low", "high", "log", "step", "choices"}:
        raise ValueError(f"it must be {{low, high, log or step}} or {{choices}}, got {shown(words)}")
    kind = str if key in groups else known[key].kind
    if "choices" not in words:
        return _read_range(words, kind)
    choices = words["choices"]
    if not isinstance(choices, list) or not choices or len(words) > 1:
        raise ValueError(f"choices must be a list of values and stand alone, got {shown(dict(words))}")
    values = [_fitted(kind, choice, "a choice") for choice in choices]
    if len(set(map(json.dumps, values))) < len(values):
        raise ValueError("a choice is listed twice. Remove one")
    return CategoricalDistribution(values)


def _fitted(kind: Any, value: Any, name: str) -> Any:
    value, wanted = fitted(kind, value)
    if wanted:
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}")
    return value


def _read_range(words: Mapping[str, Any], kind: Any) -> Distribution:
    if kind is bool or fitted(kind, 1)[1]:
        raise ValueError("it takes no numbers, so it has no range. Give {choices: [...]}")
    number = int if fitted(kind, 1.5)[1] else float
    for name in ("low", "high"):
        if words.get(name) is None:
            raise ValueError(f"it has no {name}. Write {{low: NUMBER, high: NUMBER}} or {{choices: [...]}}")
    low, high = (_fitted(number, words[name], name) for name in ("low", "high"))
    log = _fitted(bool, words.get("log", False), "log")
    step = None if words.get("step") is None else _fitted(number, words["step"], "step")
    if not low < high:
        raise ValueError(f"low must be less than high, got {low} and {high}")
    if log and (low <= 0 or step is not None):
        raise ValueError("log: true wants low above 0 and no step. Change low, or leave one of the two out")
    if step is not None and step <= 0:
        raise ValueError(f"step must be more than 0, got {step}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # high becomes the last value that steps from low reach
        if number is int:
            return IntDistribution(low, high, log=log, step=step or 1)
        return FloatDistribution(low, high, log=log, step=step)


def rounded(distribution: Distribution, value: Any) -> Any:
    """Return a drawn value as it is used: a fraction with few digits, inside its range."""
    if not isinstance(distribution, FloatDistribution):
        return value
    short = float(f"{value:.{DIGITS if distribution.step is None else 12}g}")
    return min(max(short, distribution.low), distribution.high)


def listed(distribution: Distribution) -> list[Any] | None:
    """Return all values of choices or of a range with steps, None for other ranges."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    low, step = distribution.low, distribution.step
    if step is None or distribution.log:
        return None
    count = int((distribution.high - low) / step + 1e-9) + 1
    return [rounded(distribution, low + place * step) for place in range(count)]


def grid_size(space: Space) -> int:
    """Return the number of points of the grid."""
    return math.prod(len(listed(distribution) or ()) for distribution in space.values())


def grid_points(space: Space) -> Iterator[Point]:
    """Yield the points of a grid, the last setting changing fastest."""
    for values in itertools.product(*(listed(distribution) or () for distribution in space.values())):
        yield dict(zip(space, values, strict=True))


def points_to_check(space: Space, sampler: str) -> Iterator[Point]:
    """Yield a grid's points, or all combinations of choices and ends of ranges; of too many, some, always the same."""
    if sampler == "grid":
        yield from itertools.islice(grid_points(space), MAX_CHECKED)
        return
    ends = [getattr(each, "choices", None) or (each.low, each.high) for each in space.values()]  # type: ignore[union-attr]
    combinations: Iterable[tuple] = itertools.product(*ends)
    if math.prod(map(len, ends)) > MAX_CHECKED:
        chance = random.Random(0)
        combinations = (tuple(map(chance.choice, ends)) for _ in range(MAX_CHECKED))
    for values in combinations:
        yield dict(zip(space, values, strict=True))
