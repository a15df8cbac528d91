"""The command line of the benchmark."""

import subprocess
import sys
from pathlib import Path

import pytest

from minigpt.benchmark.bench import Bench
from minigpt.benchmark.settings import PRESETS, WARM_UP, read_plans
from minigpt.config.commands import BenchmarkConfig
from minigpt.config.compose import compose
from minigpt.config.convert import settings
from minigpt.faults import UserFault

ROOT = Path(__file__).parents[2]


def faults(*arguments):
    with pytest.raises(UserFault) as caught:
        read_plans(list(arguments))
    return list(caught.value.faults)


def trained(plan, folder, *changes):
    (folder / "text.txt").write_text("any")
    return compose("train", Bench(plan, folder).words(*changes))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_alone_is_a_plan_with_the_published_sizes(preset, tmp_path):
    (plan,) = read_plans([f"preset={preset}"])
    sizes = {"c0": (4, 4, 128, 64, 12), "c1": (6, 6, 384, 256, 16), "124m": (12, 12, 768, 1024, 32)}
    sizes = (sizes | {"350m": (24, 16, 1024, 1024, 16)})[preset]
    config = trained(plan, tmp_path)
    model = config.model
    assert (model.n_layer, model.n_head, model.n_embd, model.block_size) == sizes[:4]
    assert config.batch_tokens == sizes[4] * model.block_size
    assert (model.bias, model.activation, model.dropout) == (False, "gelu", 0.0)
    assert plan.config.rounds == 5
    assert plan.config.what == "training,sampling"
    assert config.trainer.max_steps == WARM_UP + PRESETS[preset].steps + 1


def test_settings_of_train_come_after_the_presets_and_both_reach_the_measurement(tmp_path):
    (plan,) = read_plans(["preset=c1", "trainer.precision=fp32", "model.n_layer=2", "steps=7", "rounds=2"])
    config = trained(plan, tmp_path, "optimizer.lr=0.5")
    assert (config.trainer.precision, config.model.n_layer, config.model.n_embd) == ("fp32", 2, 384)
    assert (config.trainer.max_steps, config.optimizer.lr) == (10 + 7 + 1, 0.5)
    assert (config.data.source, config.tokenizer.name) == (str(tmp_path / "text.txt"), "char")
    assert plan.config.rounds == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["preset=c9"], "preset must be one of c0, c1, 124m, 350m, gpu"),
        (["preset=c0", "rounds=0"], "rounds"),
        (["preset=c0", "steps=many"], "steps must be a whole number"),
        (["preset=c0", "round=3"], "No setting 'round'. Did you mean 'rounds'?"),
        (["preset=c0", "what=training,speed"], "'speed' can't be measured"),
        (["preset=c0", "trainer.max_steps=9"], "trainer.max_steps is the benchmark's own to give"),
        (["preset=c0", "data=stdlib"], "the benchmark's own to give: it makes its own text"),
        (["preset=c0", "tokenizer.vocab_size=300"], "the benchmark's own to give: it makes its own text"),
        (["preset=c0", "model.n_hed=3"], "Did you mean 'model.n_head'"),
        (["preset=c0", "model.n_head=3"], "n_head"),
        (["preset=c0", "nanogpt=/nowhere"], "git clone https://github.com/karpathy/nanoGPT"),
        (["preset=c0", "huggingface=yes"], "huggingface must be true or false"),
        (["preset=c0", "new_tokens=1"], "new_tokens"),
    ],
)
def test_each_fault_is_named_with_its_remedy(arguments, part):
    (sentence,) = faults(*arguments)
    assert part in sentence


def test_all_faults_are_told_at_once():
    found = faults("preset=c9", "rounds=0", "model.n_hed=3", "trainer.max_steps=3")
    assert len(found) == 4
    assert len(faults("preset=c0", "nanogpt=/nowhere", "what=nothing", "model.n_hed=3")) == 3


def test_a_missing_transformers_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (sentence,) = faults("preset=c0", "huggingface=true")
    assert "-m pip install transformers" in sentence


def test_help_names_every_key_and_the_script_exits_as_the_others_do():
    command = [sys.executable, str(ROOT / "scripts" / "benchmark.py")]
    for arguments in ([], ["--help"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode == 0
        assert all(f"\n  {key}=" in done.stdout for key in settings(BenchmarkConfig))
    done = subprocess.run([*command, "preset=c0", "rounds=-1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: rounds")
