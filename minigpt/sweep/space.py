"""What is searched: settings of scripts/train.py, each with a range or a list of choices."""

import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.config.convert import fitted, no_setting, settings, shown
from minigpt.config.schema import TrainConfig

Point = dict[str, Any]  # searched setting -> value

DIGITS = 4  # a drawn number is rounded to so many, so that people can type it again
MAX_GRID_POINTS = 100_000
HANDS_OFF = ("run.dir", "data.dir", "logger.", "samples.", "checkpoint.")  # change nothing that a sweep could measure
WORDS = ("low", "high", "log", "step", "choices")


@dataclass(frozen=True)
class Axis:
    """One searched setting: `choices`, or the numbers from `low` to `high`."""

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None  # whole numbers: 1 unless said otherwise
    whole: bool = False

    def draw(self, chance: random.Random) -> Any:
        """A value, each as likely as any other (on the log scale if `log`)."""
        if self.choices:
            return self.choices[chance.randrange(len(self.choices))]
        if self.step is not None:
            return self.at(chance.randrange(self.steps))
        if self.log:
            return self.rounded(math.exp(chance.uniform(math.log(self.low), math.log(self.high))))
        return self.rounded(chance.uniform(self.low, self.high))

    @property
    def steps(self) -> int:
        """Number of values of a range with steps."""
        assert self.step is not None
        return int((self.high - self.low) / self.step + 1e-9) + 1

    def at(self, place: int) -> Any:
        """The value at a place of a range with steps."""
        assert self.step is not None
        value = self.low + place * self.step
        return round(value) if self.whole else float(f"{value:.12g}")

    def rounded(self, value: float) -> Any:
        """A drawn number as it is used: whole where the setting is, else with a few digits; inside the range."""
        value = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(value, self.low), self.high)

    def listed(self) -> list[Any]:
        """All values; only for choices and ranges with steps."""
        return list(self.choices) or [self.at(place) for place in range(self.steps)]

    def ends(self) -> list[Any]:
        """The values that a check of the whole space must see."""
        return list(self.choices) or [self.low, self.high]


def read_space(
    space: Mapping[str, Any], groups: Mapping[str, Iterable[str]], sampler: str
) -> tuple[list[Axis], list[str]]:
    """The axes of a search, and what is wrong with it, a sentence each.

    Args:
        space: setting -> {low, high, log, step} or {choices}.
        groups: group -> its choices; a group can be searched like a setting.
        sampler: a grid needs axes with a number of values.
    """
    axes, faults = [], []
    if not space:
        faults.append(
            "Nothing is searched. Give a search of configs/search/ (search=lr), or a space of your own: "
            """search.space='{"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": true}}'"""
        )
    for key, words in space.items():
        axis, fault = read_axis(str(key), words, groups)
        if axis is not None and sampler == "grid" and not axis.choices and axis.step is None:
            fault = (
                f"search.space {key}: a grid needs choices, or a range with a step. Give one, or search.sampler=tpe."
            )
        if fault:
            faults.append(fault)
        elif axis is not None:
            axes.append(axis)
    if sampler == "grid" and not faults and math.prod(len(axis.listed()) for axis in axes) > MAX_GRID_POINTS:
        faults.append(f"The grid has more than {MAX_GRID_POINTS:,} points. Use fewer, or search.sampler=random.")
    return axes, faults


def read_axis(key: str, words: Any, groups: Mapping[str, Iterable[str]]) -> tuple[Axis | None, str]:
    """One axis, or the sentence that says what is wrong with it."""
    kinds = {name: setting.kind for name, setting in settings(TrainConfig).items()}
    place = f"search.space {key}"
    if key not in kinds and key not in groups:
        return None, f"search.space: {no_setting(key, [*kinds, *groups])}"
    if key.startswith(HANDS_OFF):
        return None, f"{place}: it changes nothing that a trial is measured by. Remove it from the search."
    if not isinstance(words, Mapping) or not set(words) <= set(WORDS):
        return None, f"{place} must be {{low, high, log or step}} or {{choices}}, got {shown(words)}."
    if "choices" in words:
        return read_choices(key, words, list(groups[key]) if key in groups else kinds[key])
    return read_range(key, words, kinds.get(key))


def read_choices(key: str, words: Mapping[str, Any], kind: Any) -> tuple[Axis | None, str]:
    """An axis of listed values; `kind` is the setting's type, or the choices of its group."""
    given = words["choices"]
    if not isinstance(given, list) or not given or len(words) > 1:
        return None, f"search.space {key}: choices must be a list of values and stand alone, got {shown(dict(words))}."
    values = []
    for value in given:
        if isinstance(kind, list):
            wanted = "" if value in kind else f"one of {', '.join(kind)}"
        else:
            value, wanted = fitted(kind, value)
        if wanted:
            return None, f"search.space {key}: a choice must be {wanted}, got {shown(value)}."
        values.append(value)
    if len({json.dumps(value) for value in values}) < len(values):
        return None, f"search.space {key}: a choice stands there twice. Remove one."
    return Axis(key, choices=tuple(values)), ""


def read_range(key: str, words: Mapping[str, Any], kind: Any) -> tuple[Axis | None, str]:
    """An axis of numbers between two ends."""
    place = f"search.space {key}"
    whole = fitted(kind, 1.5)[1] != "" if kind is not None else False
    if kind is None or fitted(kind, 1)[1] or kind is bool:
        return None, f"{place} takes no numbers, so it has no range. Give {{choices: [...]}}."
    ends = {}
    for name in ("low", "high", *(["step"] if words.get("step") is not None else [])):
        if name not in words:
            return None, f"{place} has no {name}. Write {{low: NUMBER, high: NUMBER}} or {{choices: [...]}}."
        value, wanted = fitted(int if whole else float, words[name])
        if wanted:
            return None, f"{place}: {name} must be {wanted}, got {shown(words[name])}."
        ends[name] = value
    log, step = words.get("log", False), ends.get("step")
    if not isinstance(log, bool):
        return None, f"{place}: log must be true or false, got {shown(log)}."
    if not ends["low"] < ends["high"]:
        return None, f"{place}: low must be less than high, got {ends['low']} and {ends['high']}."
    if log and (ends["low"] <= 0 or step is not None):
        return None, f"{place}: log: true wants low above 0 and no step. Change low, or leave one of the two out."
    if step is not None and step <= 0:
        return None, f"{place}: step must be more than 0, got {step}."
    if whole and not log and step is None:
        step = 1
    high = ends["high"]
    if step is not None:  # the last value that steps from low reach
        high = Axis(key, low=ends["low"], high=high, step=step, whole=whole).listed()[-1]
    return Axis(key, low=ends["low"], high=high, log=log, step=step, whole=whole), ""


def grid_size(axes: Sequence[Axis]) -> int:
    """Number of points of the grid."""
    return math.prod(len(axis.listed()) for axis in axes)


def grid_point(axes: Sequence[Axis], number: int) -> Point:
    """The point of a grid at this place; the last axis changes fastest."""
    point: Point = {}
    for axis in reversed(axes):
        values = axis.listed()
        number, place = divmod(number, len(values))
        point[axis.key] = values[place]
    return {axis.key: point[axis.key] for axis in axes}


def corners(axes: Sequence[Axis], most: int = 512) -> Iterator[Point]:
    """All combinations of choices and ends of ranges; of too many, some, drawn alike each time."""
    ends = [axis.ends() for axis in axes]
    if math.prod(map(len, ends)) <= most:
        combinations: Iterable[tuple] = itertools.product(*ends)
    else:
        chance = random.Random(0)
        combinations = (tuple(chance.choice(values) for values in ends) for _ in range(most))
    for values in combinations:
        yield {axis.key: value for axis, value in zip(axes, values, strict=True)}


def override(key: str, value: Any) -> str:
    """A setting as scripts/train.py takes it."""
    return f"{key}={text_of(value)}"


def text_of(value: Any) -> str:
    """A value as it is typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, float) else str(value)
