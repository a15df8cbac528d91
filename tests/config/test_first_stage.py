"""What init.experiment names: composed from the same folders, of the same model, known before the first step."""

import pytest

from minigpt.config.compose import compose
from minigpt.config.first_stage import first_stage
from minigpt.faults import UserFault


def first_of(*words):
    return first_stage(compose("train", list(words)), words)


@pytest.mark.parametrize(
    ("words", "own", "theirs"),
    [
        (
            ["model.n_layer=5", "model.tied=false"],
            "model.n_layer=5, model.tied=false",
            "model.n_layer=4, model.tied=true",
        ),
        (["tokenizer=gpt2"], "tokenizer.name='gpt2'", "tokenizer.name='byte'"),
    ],
)
def test_another_model_than_the_first_one_trains_is_refused(words, own, theirs):
    with pytest.raises(UserFault) as fault:
        first_of("experiment=chat_tiny", *words)
    remedy = "Leave that out, or train chat_tiny_base by itself with it and give init.from=ITS_RUN"
    assert str(fault.value) == (
        f"{own} does not fit experiment=chat_tiny_base, which is trained first with {theirs}. {remedy}"
    )


def test_what_stands_for_the_same_size_and_a_longer_context_are_no_other_model():
    assert first_of("experiment=chat_tiny", "model.n_kv_head=0", "model.block_size=256") is not None
    with pytest.raises(UserFault, match=r"model\.block_size=128 does not fit"):  # a table of positions
        first_of("experiment=shakespeare_char", "init.experiment=shakespeare_char", "model.block_size=128")


def test_folders_of_configs_are_of_both(tmp_path):
    (tmp_path / "experiment").mkdir()
    for name, before in (("mine", "my_base"), ("my_base", None), ("third", "mine")):
        words = f"# @package _global_\nexperiment: {name}\n" + f"init: {{experiment: {before}}}\n" * bool(before)
        (tmp_path / "experiment" / f"{name}.yaml").write_text(words)
    for folder in ([f"--config-dir={tmp_path}"], ["-cd", str(tmp_path)]):
        assert first_of("experiment=mine", *folder).experiment == "my_base"
    with pytest.raises(UserFault, match=r"starts from init\.experiment=my_base itself"):
        first_of("experiment=third", *folder)
