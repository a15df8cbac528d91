"""Reading and writing configs: strict, every fault at once, and what is written reads back the same."""

import json
import random
import typing

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from minigpt.config.convert import flatten, nearest, read, seconds_of, settings, to_dict, value_from_text
from minigpt.config.schema import SampleConfig, TrainConfig
from tests.conftest import LETTERS


def faults_of(mapping: object) -> tuple[str, ...]:
    return tuple(fault.sentence for fault in read(TrainConfig, mapping)[1])


def values_of(kind: typing.Any) -> st.SearchStrategy:
    """Legal values of a type, as JSON can hold them."""
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    simple = {
        int: st.integers(0, 2**31),
        float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5),
        bool: st.booleans(),
        str: st.text(LETTERS),
        type(None): st.none(),
        list[str]: st.lists(st.text(LETTERS)),
        dict[str, float]: st.just({}),
    }
    return simple[kind] if kind in simple else st.one_of(*map(values_of, typing.get_args(kind)))


@pytest.mark.parametrize("cls", [TrainConfig, SampleConfig])
@limits(max_examples=8)
@given(data=st.data())
def test_saved_config_reads_back_the_same(cls, data):
    legal = {key: values_of(setting.kind) for key, setting in settings(cls).items()}
    flat = data.draw(st.fixed_dictionaries(legal))
    config = read(cls, flat)[0]
    saved = json.loads(json.dumps(to_dict(config)))
    assert read(cls, saved)[0] == config
    assert flatten(saved) == flat


def test_a_setting_is_spelled_as_users_type_it():
    config = read(TrainConfig, {"init": {"from": "runs/old"}})[0]
    assert config.init.source == "runs/old"
    assert to_dict(config)["init"] == {"from": "runs/old", "experiment": None}
    assert faults_of({"init": {"source": "runs/old"}})[0].startswith("No setting 'init.source'.")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("seed", True, "a whole number"),
        ("seed", "1e6", "a whole number"),
        ("optimizer.lr", False, "a number"),
        ("optimizer.lr", 10**400, "a number"),
        ("model.tied", 1, "true or false"),
        ("model.bias", "yes", "one of true, false, none, qkv"),
        ("data.dir", None, "text"),
        ("data.source", 5, "text or null"),
        ("trainer.precision", "bf61", "one of auto, fp32, bf16, fp16, fp64 (did you mean bf16?)"),
        ("model.activation", ["gelu"], "one of gelu_tanh, gelu"),
        ("trainer.loss_chunk", 1.5, "one of auto, off or a whole number"),
    ],
)
def test_wrong_types_are_refused(key, value, wanted):
    (fault,) = faults_of({key: value})
    assert fault.startswith(f"{key} must be {wanted}")
    assert "\n" not in fault
    assert len(fault) < 300


def test_whole_numbers_are_numbers_and_yaml_switches_are_words():
    config = read(TrainConfig, {"optimizer": {"lr": 1}, "trainer": {"compile": False, "loss_chunk": False}})[0]
    assert type(config.optimizer.lr) is float
    assert (config.trainer.compile, config.trainer.loss_chunk) == ("off", "off")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "-3", -3),
        (int, "1e3", "1e3"),
        (int, " 1", " 1"),
        (int, "٣", "٣"),
        (int, "9" * 5000, "9" * 5000),
        (float, "1e-3", 1e-3),
        (float, "x", "x"),
        (bool, "True", True),
        (bool, "1", "1"),
        (int | None, "null", None),
        (int | None, "7", 7),
        (str, "null", "null"),
        (list[str], '["a", "\\n"]', ["a", "\n"]),
        (list[str], "END\\n", ["END\n"]),
        (list[str], "[" * 100_000, "[" * 100_000),
        (dict[str, float], "a/:0.7,b:0.3", {"a/": 0.7, "b": 0.3}),
        (dict[str, float], "{https://h/a: 1, b: 2}", {"https://h/a": 1.0, "b": 2.0}),
        (dict[str, float], "a", "a"),
        (typing.Literal["auto"] | int, "1024", 1024),
    ],
)
def test_text_becomes_the_value_of_its_type(kind, text, value):
    converted = value_from_text(kind, text)
    assert converted == value
    assert type(converted) is type(value)


def misspellings(key: str, rng: random.Random) -> list[str]:
    """One letter left out, doubled, replaced, and two swapped, at a random place."""
    place = rng.choice([place for place, letter in enumerate(key) if letter.isalpha()])
    before, letter, after = key[:place], key[place], key[place + 1 :]
    return [before + after, before + 2 * letter + after, before + rng.choice("aeqxz") + after]


def test_every_misspelt_key_gets_the_right_suggestion():
    rng, known = random.Random(0), list(settings(TrainConfig))
    tries = [(key, wrong) for key in known for wrong in misspellings(key, rng) if wrong not in known]
    missed = [wrong for key, wrong in tries if key not in nearest(wrong, known)]
    assert len(tries) > 2 * len(known)
    assert len(missed) <= 0.05 * len(tries), missed
    assert max(len(nearest(wrong, known)) for _, wrong in tries) <= 4


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("90 sec", 90), ("20min", 1200), ("20 Minutes", 1200), ("2m", 120), ("1h30m", 5400),
        ("1h 30min", 5400), ("0.5h", 1800), ("2 hrs", 7200), ("1d", 86400), ("20", None), ("1:30", None), ("h", None),
        ("2moons", None), ("", None),
    ],
)  # fmt: skip
def test_a_time_is_read_as_people_type_it(text, seconds):
    assert seconds_of(text) == seconds
