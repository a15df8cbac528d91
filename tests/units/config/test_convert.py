"""Reading and writing configs: strict, every fault at once, and what is written reads back the same."""

import functools
import json
import random
import typing

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from minigpt.config.commands import CLASSES as COMMANDS
from minigpt.config.convert import (
    flatten,
    from_dict,
    nearest,
    settings,
    to_dict,
    value_from_text,
)
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

CLASSES = tuple(COMMANDS.values())


def faults_of(cls: type, mapping: object) -> tuple[str, ...]:
    with pytest.raises(UserFault) as caught:
        from_dict(cls, mapping)  # type: ignore[arg-type]
    return tuple(caught.value.faults)


def values_of(key: str, kind: typing.Any) -> st.SearchStrategy:
    """Legal values of a type, as JSON can hold them."""
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    simple = {
        int: st.integers(0, 2**31),
        float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5),
        bool: st.booleans(),
        str: st.text(),
        type(None): st.none(),
        list[str]: st.lists(st.text()),
        dict[str, typing.Any]: st.just({}),
        dict[str, float]: st.just({}),
    }
    return simple[kind] if kind in simple else st.one_of(*(values_of(key, part) for part in typing.get_args(kind)))


def kinds(cls: type) -> dict[str, typing.Any]:
    return {key: setting.kind for key, setting in settings(cls).items()}


@functools.cache
def legal(cls: type) -> st.SearchStrategy:
    return st.fixed_dictionaries({key: values_of(key, kind) for key, kind in kinds(cls).items()})


@pytest.mark.parametrize("cls", CLASSES)
@limits(max_examples=25, deadline=None)
@given(data=st.data())
def test_saved_config_reads_back_the_same(cls, data):
    flat = data.draw(legal(cls))
    config = from_dict(cls, flat)
    saved = json.loads(json.dumps(to_dict(config)))
    assert from_dict(cls, saved) == config
    assert flatten(saved) == flat


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_are_a_legal_config(cls):
    assert from_dict(cls, {}) == cls()
    assert from_dict(cls, to_dict(cls())) == cls()


def test_outside_spelling():
    config = from_dict(TrainConfig, {"init": {"from": "runs/old"}})
    assert config.init.source == "runs/old"
    assert to_dict(config)["init"] == {"from": "runs/old", "experiment": None}
    assert faults_of(TrainConfig, {"init": {"source": "runs/old"}})[0].startswith("No setting 'init.source'.")


def test_every_fault_is_reported_at_once():
    faults = faults_of(
        TrainConfig,
        {
            "seeds": 1,
            "trainer": {"max_steps": "abc", "max_step": 5, "device": "gpu"},
            "model": 3,
            "optimizer": {"lr": float("nan"), "adam": {"beta": 1}},
        },
    )
    assert faults[0] == "No setting 'seeds'. Did you mean 'seed'?"
    assert faults[1] == "trainer.max_steps must be a whole number or null, got 'abc'."
    assert faults[2] == "No setting 'trainer.max_step'. Did you mean 'trainer.max_steps'?"
    assert faults[3].startswith("trainer.device must be one of auto, cuda, mps, cpu")
    assert faults[4].startswith("model is a group of settings (model.n_layer, ")
    assert faults[5] == "optimizer.lr must be a finite number, got nan."
    assert faults[6].startswith("No setting 'optimizer.adam.beta'.")
    assert len(faults) == 7


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("seed", True, "a whole number"),
        ("seed", 1.0, "a whole number (write 1)"),
        ("seed", "1e6", "a whole number (write 1000000)"),
        ("seed", None, "a whole number"),
        ("seed", [1], "a whole number"),
        ("optimizer.lr", False, "a number"),
        ("optimizer.lr", "fast", "a number"),
        ("optimizer.lr", 10**400, "a number"),
        ("optimizer.lr", float("inf"), "a finite number"),
        ("optimizer.lr", {"a": 1}, None),
        ("model.tied", 1, "true or false"),
        ("model.tied", "yes", "true or false"),
        ("model.bias", 1, "one of true, false, none, qkv, attention, all"),
        ("model.bias", "yes", "one of true, false, none, qkv"),
        ("data.dir", 5, "text"),
        ("data.dir", None, "text"),
        ("data.source", 5, "text or null"),
        ("trainer.precision", "bf61", "one of auto, fp32, bf16, fp16, fp64 (did you mean bf16?)"),
        ("trainer.precision", True, "one of auto, fp32, bf16, fp16, fp64"),
        ("model.activation", ["gelu"], "one of gelu_tanh, gelu"),
    ],
)
def test_wrong_types_are_refused(key, value, wanted):
    section, _, last = key.rpartition(".")
    (fault,) = faults_of(TrainConfig, {section: {last: value}} if section else {key: value})
    assert fault.startswith(f"{key} must be {wanted}" if wanted else key)
    assert "\n" not in fault
    assert len(fault) < 300


def test_whole_numbers_are_numbers_and_yaml_switches_are_words():
    config = from_dict(TrainConfig, {"optimizer": {"lr": 1}, "trainer": {"compile": False}})
    assert type(config.optimizer.lr) is float
    assert config.trainer.compile == "off"
    assert from_dict(TrainConfig, {"trainer": {"compile": True}}).trainer.compile == "on"


@pytest.mark.parametrize("mapping", [None, 5, "abc", [1]])
def test_something_else_than_a_mapping_is_refused(mapping):
    assert faults_of(TrainConfig, mapping)[0].startswith("A config must be a mapping")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "12", 12),
        (int, "-3", -3),
        (int, "1_000", 1000),
        (int, "1e3", "1e3"),
        (int, "", ""),
        (int, " 1", " 1"),
        (int, "٣", "٣"),
        (int, "9" * 5000, "9" * 5000),
        (float, "1e-3", 1e-3),
        (float, ".5", 0.5),
        (float, "x", "x"),
        (bool, "True", True),
        (bool, "false", False),
        (bool, "1", "1"),
        (int | None, "null", None),
        (int | None, "7", 7),
        (str, "7", "7"),
        (str, "null", "null"),
        (list[str], '["a", "\\n"]', ["a", "\n"]),
        (list[str], "[a]", "[a]"),
        (list[str], "[" * 100_000, "[" * 100_000),
    ],
)
def test_text_becomes_the_value_of_its_type(kind, text, value):
    found = value_from_text(kind, text)
    assert found == value
    assert type(found) is type(value)


def misspellings(key: str, rng: random.Random) -> list[str]:
    """One letter left out, doubled, replaced, and two swapped, at random places of every part of the key."""
    found = []
    for _ in range(1 + (key not in settings(TrainConfig))):
        place = rng.choice([i for i, letter in enumerate(key) if letter.isalpha()])
        found += [
            key[:place] + key[place + 1 :],
            key[:place] + key[place] + key[place:],
            key[:place] + rng.choice("aeqxz") + key[place + 1 :],
            key[: max(place - 1, 0)] + key[place] + key[max(place - 1, 0)] + key[place + 1 :] if place else key,
        ]
    return found


@pytest.mark.parametrize("cls", CLASSES)
def test_every_misspelt_key_gets_the_right_suggestion(cls):
    rng = random.Random(0)
    known = list(settings(cls))
    tries = [(key, wrong) for key in known for wrong in misspellings(key, rng) if wrong not in known]
    missed = [(wrong, nearest(wrong, known)) for key, wrong in tries if key not in nearest(wrong, known)]
    assert len(tries) > 3 * len(known)
    assert len(missed) <= 0.05 * len(tries), missed
    assert max(len(nearest(wrong, known)) for _, wrong in tries) <= 4


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("max_steps", ["trainer.max_steps"]),
        ("lr", ["optimizer.lr"]),
        ("model.lr", ["optimizer.lr"]),
        ("modle.n_layer", ["model.n_layer"]),
        ("optim.lr", ["optimizer.lr"]),
        ("trainer.epochs_per_cow", []),
        ("every_steps", [f"{each}.every_steps" for each in ("validate", "samples", "checkpoint", "logger")]),
        ("", []),
        ("zzz", []),
    ],
)
def test_nearest(key, meant):
    assert nearest(key, settings(TrainConfig)) == meant


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("off", "off"), ("1024", 1024)])
def test_words_or_a_number(text, value):
    kind = settings(TrainConfig)["trainer.loss_chunk"].kind
    assert value_from_text(kind, text) == value
    assert from_dict(TrainConfig, {"trainer": {"loss_chunk": value}}).trainer.loss_chunk == value
    assert from_dict(TrainConfig, {"trainer": {"loss_chunk": False}}).trainer.loss_chunk == "off"  # YAML's bare `off`
    for wrong in ("none", 1.5, True, None, "on"):
        (sentence,) = faults_of(TrainConfig, {"trainer": {"loss_chunk": wrong}})
        assert "trainer.loss_chunk must be one of auto, off" in sentence
        assert "or a whole number" in sentence
