"""What can be searched, how it is written, and what is wrong with it."""

import pytest

from minigpt.config.schema import SearchConfig, TrainConfig
from minigpt.config.yaml_files import find_groups
from minigpt.sweep.search import propose
from minigpt.sweep.space import Space, listed, overrides, points, read_space

GROUPS = find_groups(TrainConfig)


def space_of(words: dict, sampler: str = "tpe") -> Space:
    space, faults = read_space(words, GROUPS, sampler)
    assert faults == []
    return space


def drawn(space: Space, count: int) -> list:
    """The values that a random search tries of a space's only setting."""
    points = [propose(space, SearchConfig(sampler="random"), seed=1, number=n, trials=[]) for n in range(count)]
    return [value for point in points for value in point.values()]


def test_a_log_range_of_a_number():
    values = drawn(space_of({"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}}), 1000)
    assert all(1e-4 <= value <= 1e-2 for value in values)
    assert 0.45 < sum(value < 1e-3 for value in values) / 1000 < 0.55  # the middle of the log scale
    assert all(len(f"{value:.12e}".split("e")[0].rstrip("0").replace(".", "")) <= 4 for value in values)


def test_whole_numbers_and_steps():
    layers = space_of({"model.n_layer": {"low": 2, "high": 9, "step": 3}})
    assert list(listed(layers["model.n_layer"])) == [2, 5, 8]
    assert set(drawn(layers, 50)) == {2, 5, 8}
    decay = space_of({"optimizer.weight_decay": {"low": 0, "high": 0.3, "step": 0.1}})
    assert listed(decay["optimizer.weight_decay"]) == [0.0, 0.1, 0.2, 0.3]
    assert set(drawn(decay, 50)) == {0.0, 0.1, 0.2, 0.3}
    width = drawn(space_of({"model.n_embd": {"low": 16, "high": 256, "log": True}}), 50)
    assert all(type(value) is int and 16 <= value <= 256 for value in width)


def test_a_grid_has_each_point_once():
    words = {"model.n_layer": {"low": 1, "high": 3}, "optimizer": {"choices": ["adamw"]}}
    grid = list(points(space_of(words | {"model.bias": {"choices": [True, False]}}, "grid")))
    assert len(grid) == len({str(point) for point in grid}) == 6
    assert list(grid[0]) == ["model.n_layer", "optimizer", "model.bias"]
    assert [point["model.bias"] for point in grid[:3]] == [True, False, True]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "Nothing is searched"),
        ({"optimizer.lrr": {"choices": [1]}}, "Did you mean 'optimizer.lr'?"),
        ({"optimizer.lr": 3}, "must be {low, high, log or step} or {choices}, got 3"),
        ({"optimizer.lr": {"low": 1e-3}}, "high must be a number, got null"),
        ({"optimizer.lr": {"low": 1e-3, "high": 1e-4}}, "`low <= high` must hold"),
        ({"optimizer.lr": {"low": 0, "high": 1, "log": True}}, "`low > 0` must hold"),
        ({"optimizer.lr": {"low": 0, "high": 1, "log": "yes"}}, "log must be true or false"),
        ({"optimizer.lr": {"low": 0, "high": 1, "step": -1}}, "`step > 0` must hold"),
        ({"optimizer.lr": {"choices": []}}, "must contain one or more"),
        ({"optimizer.lr": {"choices": ["fast"]}}, "a choice must be a number, got 'fast'"),
        ({"optimizer.lr": {"choices": [1], "low": 2}}, "or {choices}, got"),
        ({"model.n_layer": {"low": 1, "high": 2.5}}, "high must be a whole number"),
    ],
)
def test_what_is_wrong_is_said(space, words):
    _, faults = read_space(space, GROUPS, "tpe")
    assert len(faults) == 1
    assert words in faults[0]


def test_a_grid_needs_numbers_that_can_be_counted():
    _, faults = read_space({"optimizer.lr": {"low": 1e-3, "high": 1e-2}, "seed": {"low": 1, "high": 3}}, GROUPS, "grid")
    assert len(faults) == 1
    assert "a grid needs choices, or a range with a step" in faults[0]


def test_values_as_they_are_typed():
    point = {"optimizer.lr": 1e-05, "trainer.max_tokens": None, "model.bias": True, "schedule": "wsd"}
    typed = ["optimizer.lr=1e-05", "trainer.max_tokens=null", "model.bias=true", "schedule=wsd"]
    assert overrides(point) == typed
