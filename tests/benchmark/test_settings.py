"""The command line of the benchmark."""

import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.benchmark.settings import HELP, OWN, PRESETS, read_plan
from minigpt.config.compose import compose
from minigpt.faults import UserFault

ROOT = Path(__file__).parents[2]


def faults(*arguments):
    with pytest.raises(UserFault) as caught:
        read_plan(list(arguments))
    return list(caught.value.faults)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_alone_is_a_plan_with_the_published_sizes(preset):
    plan = read_plan([f"preset={preset}"])
    sizes = {"c0": (4, 4, 128, 64, 12), "c1": (6, 6, 384, 256, 16), "124m": (12, 12, 768, 1024, 32)}[preset]
    model = plan.config.model
    batch = plan.config.batch_tokens // model.block_size
    assert (model.n_layer, model.n_head, model.n_embd, model.block_size, batch) == sizes
    assert (model.bias, model.activation, model.dropout) == (False, "gelu", 0.0)
    assert plan.rounds == 5
    assert plan.what == ("training", "sampling", "tokenization", "loading")
    assert plan.config.trainer.max_steps == plan.warm_up + plan.steps + 1


def test_settings_of_train_come_after_the_presets_and_both_reach_the_turn(tmp_path):
    (tmp_path / "text.txt").write_text("x" * 99)
    plan = read_plan(["preset=c1", "trainer.precision=fp32", "model.n_layer=2", "steps=7", "rounds=2"])
    config = compose("train", plan.arguments(tmp_path))
    assert (config.trainer.precision, config.model.n_layer, config.model.n_embd) == ("fp32", 2, 384)
    assert config.trainer.max_steps == 10 + 7 + 1
    assert plan.rounds == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["rounds=3"], "preset= is missing"),
        (["preset=c9"], "preset='c9' is no preset. Give one of: preset=c0, preset=c1, preset=124m"),
        (["preset=c0", "rounds=0"], "rounds=0: wanted a whole number from 1 on, like rounds=5"),
        (["preset=c0", "steps=many"], "steps=many"),
        (["preset=c0", "round=3"], "No setting 'round'. Did you mean 'rounds'?"),
        (["preset=c0", "what=training,speed"], "'speed' can't be measured"),
        (["preset=c0", "trainer.max_steps=9"], "trainer.max_steps is the benchmark's own to give"),
        (["preset=c0", "data=stdlib"], "data: the benchmark makes its own tokens"),
        (["preset=c0", "model.n_hed=3"], "Did you mean 'model.n_head'"),
        (["preset=c0", "model.n_head=3"], "n_head"),
        (["preset=c0", "nanogpt=/nowhere"], "git clone https://github.com/karpathy/nanoGPT"),
        (["preset=c0", "huggingface=yes"], "huggingface=yes: wanted true or false"),
        (["preset=c0", "size_limit_gb=lots"], "size_limit_gb=lots"),
        (["preset=c0", "new_tokens=1"], "new_tokens=1: wanted a whole number from 2 on, like new_tokens=48"),
        (["preset=c0", f"write_to={__file__}/folder"], "no file can be written to"),
        (["preset=c0", "rounds"], "rounds=VALUE"),
        (["preset=c0", "fast"], "fast"),
    ],
)
def test_each_fault_is_named_with_its_remedy(arguments, part):
    (sentence,) = faults(*arguments)
    assert part in sentence


def test_all_faults_are_told_at_once():
    found = faults("preset=c9", "rounds=0", "model.n_hed=3", "nanogpt=/nowhere", "what=nothing")
    assert len(found) == 5


def test_a_missing_transformers_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (sentence,) = faults("preset=c0", "huggingface=true")
    assert "-m pip install transformers" in sentence


def test_help_names_every_key_and_the_script_exits_as_the_others_do():
    assert all(f"\n  {key}=" in HELP for key in OWN)
    command = [sys.executable, str(ROOT / "scripts" / "benchmark.py")]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, HELP.strip())
    done = subprocess.run([*command, "preset=c0", "rounds=-1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "Error: rounds=-1: wanted a whole number from 1 on, like rounds=5\n"
