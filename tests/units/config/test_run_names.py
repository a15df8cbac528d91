"""What roles mean: the name of a run, what may change when it continues, and a new setting."""

import dataclasses
from pathlib import Path
from typing import get_args

import pytest

from minigpt.config.check import check
from minigpt.config.commands import CLASSES
from minigpt.config.compose import compose
from minigpt.config.convert import SHARES, read, settings, values
from minigpt.config.run_names import config_hash, default_run_dir, differences
from minigpt.config.schema import TrainConfig
from minigpt.config.setting import setting
from minigpt.faults import UserFault


def other_value(about):
    """A legal value that is not the default."""
    if about.kind is bool:
        return not about.default
    if about.kind == SHARES:
        return {"texts": 1.0}
    parts = [word for part in get_args(about.kind) for word in get_args(part) or (part,)]
    words = [word for word in parts if isinstance(word, str)]
    if words:
        return next(word for word in words if word != about.default)
    if (
        int in (about.kind, *get_args(about.kind))
        or isinstance(about.default, float)
        or float in getattr(about.kind, "__args__", ())
    ):
        return (about.default or 0) + 1
    return "other"


def test_the_role_of_a_setting_decides_what_it_does_to_a_run():
    for key, about in settings(TrainConfig).items():
        config = read(TrainConfig, {key: other_value(about)})[0]
        renamed = config_hash(config) != config_hash(TrainConfig())
        assert renamed == (about.role in ("weights", "content", "schedule")), key
        (change,) = differences(values(TrainConfig()), config)
        assert (change.key, change.was, change.now) == (key, about.default, other_value(about))
        assert change.role == about.role, key


def test_a_run_is_named_after_its_experiment_or_its_text(folder):
    config = TrainConfig(experiment="mine/one")
    config.model.n_layer = 3
    assert default_run_dir(config) == f"runs/mine-one-3x128-{config_hash(config)[:6]}"
    config.budget = "90s"
    assert default_run_dir(config) == f"runs/mine-one-90s-{config_hash(config)[:6]}"
    places = [("~/my notes/", "my-notes"), ("a/Hamlet.txt", "Hamlet"), ("/", "text"), (".", folder.name)]
    for source, name in [*places, ("गोदान (1).txt", "गोदान-1")]:
        config = read(TrainConfig, {"data.name": "text", "data.source": source})[0]
        assert default_run_dir(config) == f"runs/{name}-4x128-{config_hash(config)[:6]}"
        config.experiment = "text"
        assert default_run_dir(config) == f"runs/text-{name}-4x128-{config_hash(config)[:6]}"
    mixed = read(TrainConfig, {"data.mix": {"a/one.txt": 1.0, "b/": 2.0}})[0]
    assert default_run_dir(mixed).startswith("runs/mix-one-b-4x128-")


def test_the_spelling_of_a_path_is_no_change(folder):
    Path("texts").mkdir()
    for key, one, other in (("data.source", "texts", "./texts/"), ("init.from", "texts/", "texts")):
        saved, now = read(TrainConfig, {key: one})[0], read(TrainConfig, {key: other})[0]
        assert differences(values(saved), now) == []
        assert config_hash(saved) == config_hash(now)
    saved, now = values(TrainConfig()) | {"data.mix": {"texts/": 1.0}}, read(TrainConfig, {"data.mix": {"texts": 1.0}})
    assert differences(saved, now[0]) == []


@dataclasses.dataclass
class ToyConfig:
    """A group that somebody adds."""

    size: int = setting(3, "how large the toy is", "weights", low=1, high=9)
    colour: str = setting("red", "what it looks like", "watch")


@dataclasses.dataclass
class ToyTrainConfig(TrainConfig):
    """minigpt train with one more group of settings."""

    toy: ToyConfig = dataclasses.field(default_factory=ToyConfig)


def test_a_new_setting_needs_nothing_but_its_declaration(folder, monkeypatch, capsys):
    monkeypatch.setitem(CLASSES, "train", ToyTrainConfig)
    config = compose("train", ["toy.size=5", "seed=2"])
    assert (config.toy.size, config.seed) == (5, 2)
    with pytest.raises(UserFault) as caught:
        compose("train", ["toy.size=10", "toy.color=blue"])
    assert caught.value.faults == (
        "No setting 'toy.color'. Did you mean 'toy.colour'?",
        "toy.size must be at least 1 and at most 9, got 10.",
    )
    with pytest.raises(SystemExit):
        compose("train", ["--help"])
    assert "toy.size=3" in capsys.readouterr().out
    assert check(config) == []
    # A run from before the setting keeps its name and continues; one of a later version does not.
    assert default_run_dir(ToyTrainConfig(seed=3)) == default_run_dir(TrainConfig(seed=3))
    assert differences(values(TrainConfig(seed=2)), ToyTrainConfig(seed=2)) == []
    changes = [(str(change), change.role) for change in differences(values(ToyTrainConfig()), config)]
    assert changes == [("seed: 1337 -> 2", "weights"), ("toy.size: 3 -> 5", "weights")]
    (change,) = differences(values(TrainConfig()) | {"model.later": 1}, TrainConfig())
    assert (str(change), change.role) == ("model.later: 1 -> None", "weights")
