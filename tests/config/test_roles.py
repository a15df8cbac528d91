"""What roles mean: the name of a run, what may change when it continues, and settings that come and go."""

import dataclasses
import os
from typing import get_args

import pytest

from minigpt.config import roles
from minigpt.config.check import check
from minigpt.config.compose import compose
from minigpt.config.convert import SHARES, from_dict, read, settings, values
from minigpt.config.roles import config_hash, default_run_dir, differences, removed_settings, with_role
from minigpt.config.schema import TrainConfig
from minigpt.config.setting import setting
from minigpt.faults import UserFault


def other_value(about):
    """A legal value that is not the default."""
    if about.kind is bool:
        return not about.default
    if about.kind == SHARES:
        return {"texts/": 1.0}
    parts = [word for part in get_args(about.kind) for word in get_args(part) or (part,)]
    words = [word for word in parts if isinstance(word, str)]
    if words:
        return next(word for word in words if word != about.default)
    if about.is_whole or isinstance(about.default, float) or float in getattr(about.kind, "__args__", ()):
        return (about.default or 0) + 1
    return "other"


def changed(**flat):
    """A default config with settings changed, by their dotted names."""
    return from_dict(TrainConfig, flat)


def test_the_role_of_a_setting_decides_what_it_does_to_a_run():
    for key, about in settings(TrainConfig).items():
        config = changed(**{key: other_value(about)})
        renamed = config_hash(config) != config_hash(TrainConfig())
        assert renamed == (about.role in ("weights", "content", "schedule")), key
        (change,) = differences(values(TrainConfig()), config)
        assert (change.key, change.was, change.now) == (key, about.default, other_value(about))
        assert change.allowed == (about.role != "weights"), key


def test_the_roles_of_settings_that_people_change():
    """As it was when lists were kept by hand."""
    fixed = with_role(TrainConfig, "weights")
    assert {"seed", "batch_tokens", "tokenizer.name", "data.val_fraction", "trainer.precision"} <= fixed
    assert {key for key in fixed if key.startswith("model.")} == {
        key
        for key in settings(TrainConfig)
        if key.startswith("model.") and key not in ("model.dropout", "model.checkpoint_activations")
    }
    later = with_role(TrainConfig, "schedule")
    assert {"optimizer.lr", "schedule.name", "trainer.max_steps", "guard.max_skips", "validate.every_steps"} <= later
    assert {"trainer.device", "trainer.devices", "trainer.micro_batch"} <= with_role(TrainConfig, "machine")
    assert {"run.dir", "data.dir", "experiment", "logger.name"} <= with_role(TrainConfig, "watch")
    assert with_role(TrainConfig, "content") == {"data.source", "data.val_source", "data.shards", "tokenizer.file"}


def test_a_run_is_named_after_its_experiment_or_its_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(experiment="mine/one")
    assert default_run_dir(config) == f"runs/mine-one-{config_hash(config)}"
    for source, name in (("~/my notes/", "my-notes"), ("a/Hamlet.txt", "Hamlet"), ("/", "text"), (".", tmp_path.name)):
        config = changed(**{"data.name": "text", "data.source": source})
        assert default_run_dir(config) == f"runs/{name}-{config_hash(config)}"
    config.experiment = "mine"
    assert default_run_dir(config) == f"runs/mine-{config_hash(config)}"


OLD_NAMES = [  # as commit 25310c3 gave them
    ([], "runs/default-1e86d79d"),
    (["experiment=shakespeare_char_cpu"], "runs/shakespeare_char_cpu-c5fd4cea"),
    (["trainer.device=cpu", "optimizer.lr=3e-3", "logger.every_steps=1"], "runs/default-10021e06"),
    (["data=text", "data.source=text.txt", "tokenizer=char"], "runs/default-1c7e464f"),
]


@pytest.mark.parametrize(("arguments", "name"), OLD_NAMES)
def test_a_run_is_found_under_the_name_that_it_had(arguments, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("text")
    config = compose("train", arguments)
    new = default_run_dir(config)
    assert new != name
    os.makedirs(name)
    assert default_run_dir(config) == name
    assert default_run_dir(dataclasses.replace(config, seed=5)) != name


# --- settings that come and go ---


@dataclasses.dataclass
class ToyConfig:
    """An option as another version may have it."""

    size: int = setting(3, "how large the toy is", "weights", low=1, high=9, since="9.0.0")
    colour: str = setting("red", "what it looks like", "watch", since="9.0.0")


@dataclasses.dataclass
class ToyTrainConfig(TrainConfig):
    """scripts/train.py with one more group of settings."""

    toy: ToyConfig = dataclasses.field(default_factory=ToyConfig)


def test_a_new_option_needs_nothing_but_its_declaration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = compose("train", ["toy.size=5", "seed=2"], cls=ToyTrainConfig)
    assert (config.toy.size, config.seed) == (5, 2)
    with pytest.raises(UserFault) as caught:
        compose("train", ["toy.size=10", "toy.color=blue"], cls=ToyTrainConfig)
    assert caught.value.faults == (
        "No setting 'toy.color'. Did you mean 'toy.colour'?",
        "toy.size must be at least 1 and at most 9, got 10.",
    )
    with pytest.raises(SystemExit):
        compose("train", ["--help"], cls=ToyTrainConfig)
    assert "toy.size=3" in capsys.readouterr().out
    assert check(config) == []
    changes = differences(values(ToyTrainConfig()), config)
    assert [(str(change), change.allowed) for change in changes] == [
        ("seed: 1337 -> 2", False),
        ("toy.size: 3 -> 5", False),
    ]


def test_an_upgrade_that_adds_a_setting_changes_no_name_and_continues_every_run(tmp_path, monkeypatch):
    """Finding 5: a missing key had counted as different, and each default was part of the name."""
    monkeypatch.chdir(tmp_path)
    before, after = TrainConfig(seed=3), ToyTrainConfig(seed=3)
    assert default_run_dir(after) == default_run_dir(before)
    assert differences(values(before), after) == []
    old = f"runs/default-{roles.old_config_hash(before)}"
    os.makedirs(old)
    assert default_run_dir(after) == default_run_dir(before) == old
    after.toy.size = 4  # which no old run can have had
    assert default_run_dir(after) == f"runs/default-{config_hash(after)}" != default_run_dir(before)
    assert [str(change) for change in differences(values(before), after)] == ["toy.size: 3 -> 4"]


def test_a_setting_that_was_removed_is_ignored_where_it_is_stored_and_refused_where_it_is_typed(monkeypatch):
    monkeypatch.setitem(roles.REMOVED, "data.gone", "it did nothing")
    saved = values(TrainConfig()) | {"data.gone": 2}
    assert differences(saved, TrainConfig()) == []
    assert removed_settings(saved, TrainConfig) == ["data.gone=2, which is ignored: it did nothing."]
    (fault,) = read(TrainConfig, {"data": {"gone": 2}})[1]
    with pytest.raises(UserFault) as caught:
        compose("train", ["data.gone=2"])
    assert caught.value.faults == (fault.sentence,)
    assert fault.sentence == "data.gone is not a setting any more: it did nothing. Leave it out."


def test_a_setting_of_a_later_version_forbids_to_continue():
    (change,) = differences(values(TrainConfig()) | {"model.later": 1}, TrainConfig())
    assert (str(change), change.allowed) == ("model.later: 1 -> None", False)
