"""-m: lists of values become one command line for each combination."""

import pytest

from minigpt.config.command_line import expand_lists


def test_the_last_list_changes_fastest_and_single_values_stay_as_typed():
    assert expand_lists(["-m", "model=gpt2,gpt-nano", "trainer.max_steps=5", "seed=range(1,4)"]) == [
        ([f"model={model}", "trainer.max_steps=5", f"seed={seed}"], f"model={model} seed={seed}")
        for model in ("gpt2", "gpt-nano")
        for seed in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("argument", "texts"),
    [
        ("optimizer.lr=1e-3,3e-3", ["optimizer.lr=1e-3", "optimizer.lr=3e-3"]),
        ("trainer.max_tokens=null, 100", ["trainer.max_tokens=null", "trainer.max_tokens=100"]),
        ("+seed=range(1,3)", ["+seed=1", "+seed=2"]),
        ("adapter=none,lora", ["adapter=none", "adapter=lora"]),  # which is free text in sample alone
    ],
)
def test_each_kind_of_list(argument, texts):
    assert expand_lists(["--multirun", argument]) == [([text], text) for text in texts]


@pytest.mark.parametrize(
    "argument",
    ["samples.prompt=one, two", "data.source=a,b", "data.mix=a:1,b:2", "seed=", "seed=1,", "--config-dir=a,b", "seed"],
)
def test_what_lists_nothing_stays_as_it_is(argument):
    assert expand_lists(["-m", argument]) == [([argument], "")]
