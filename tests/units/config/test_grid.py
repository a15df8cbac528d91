"""-m: which arguments list values."""

import re

import pytest

from minigpt.config.command_line import split_lists
from minigpt.faults import UserFault
from minigpt.sweep.settings import read_grid


def test_single_values_stay_as_typed():
    words = ["-m", "model=gpt2,gpt-nano", "trainer.max_steps=5", "seed=range(1,4)"]
    assert split_lists(words) == (["trainer.max_steps=5"], {"model": ["gpt2", "gpt-nano"], "seed": ["1", "2", "3"]})


@pytest.mark.parametrize(
    ("argument", "key", "texts"),
    [
        ("optimizer.lr=1e-3,3e-3", "optimizer.lr", ["1e-3", "3e-3"]),
        ("trainer.max_tokens=null, 100", "trainer.max_tokens", ["null", "100"]),
        ("+seed=range(1,3)", "seed", ["1", "2"]),
        ("adapter=none,lora", "adapter", ["none", "lora"]),  # which is free text in sample alone
    ],
)
def test_each_kind_of_list(argument, key, texts):
    assert split_lists(["--multirun", argument]) == ([], {key: texts})


@pytest.mark.parametrize(
    "argument",
    ["samples.prompt=one, two", "data.source=a,b", "data.mix=a:1,b:2", "seed=", "seed=1,", "--config-dir=a,b", "seed"],
)
def test_what_lists_nothing_stays_as_it_is(argument):
    assert split_lists(["-m", argument]) == ([argument], {})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["seed=1,2", "run.dir=here"], "Leave out run.dir"),
        (["data.source=a.txt,b.txt"], "-m has no list"),
        (["seed=1,1"], "values that are there twice"),
        (["seed=1,-2"], "At seed=-2: seed must be at least 0"),
        (["seed=1,x"], "a choice must be a whole number"),
        (["sede=1,2"], "No setting 'sede'. Did you mean 'seed'?"),
        (["seed=1,2", "seeds=2"], "List them: seed=1,2,3"),
    ],
)
def test_what_no_grid_can_train_is_named_before_anything_is_started(folder, words, says):
    with pytest.raises(UserFault, match=re.escape(says)):
        read_grid(["-m", *words], ["train"])
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("words", "metric"), [("tokenizer=byte,char", "val/bits_per_byte"), ("seed=1,2", "val/loss")])
def test_between_vocabularies_a_grid_compares_bits_per_byte(words, metric):
    assert read_grid(["-m", words], ["train"]).config.sweep.metric == metric
