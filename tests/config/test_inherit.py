"""init.from: the architecture comes with the weights, and what is typed beside it must be the same."""

import json

import pytest

from minigpt.config.compose import compose
from minigpt.config.convert import to_dict
from minigpt.config.schema import ModelConfig, TokenizerConfig, TrainConfig
from minigpt.faults import UserFault

THEIRS = TrainConfig(
    model=ModelConfig(n_layer=3, n_head=6, n_embd=48, block_size=32, attention="rotary", dropout=0.1),
    tokenizer=TokenizerConfig(name="char"),
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step, config in ((5, TrainConfig()), (10, THEIRS)):
        folder = tmp_path / f"runs/it, mine/checkpoints/step-{step:09d}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(to_dict(config)))
    return "runs/it, mine"


@pytest.mark.parametrize("inside", ["", "/checkpoints", "/checkpoints/step-000000010"])
def test_nothing_of_the_architecture_is_typed_again(run, inside, capsys):
    config = compose("train", [f"init.from={run}{inside}", "optimizer.lr=1e-4", "batch_tokens=64"])
    assert (config.model.n_layer, config.model.n_head, config.model.attention) == (3, 6, "rotary")
    assert (config.model.n_embd, config.model.block_size, config.tokenizer.name) == (48, 32, "char")
    assert config.model.dropout == 0.0  # not the weights' business
    assert (config.optimizer.lr, config.batch_tokens) == (1e-4, 64)
    assert "brings model.n_layer=3, model.n_head=6" in capsys.readouterr().err


def test_an_experiment_gives_the_rest_and_the_weights_their_architecture(run):
    config = compose("train", ["experiment=shakespeare_char", f"init.from={run}", "model.dropout=0.3"])
    assert (config.model.n_layer, config.model.bias, config.model.dropout) == (3, True, 0.3)
    assert config.trainer.max_steps == 5000


def test_what_is_typed_beside_it_is_checked_and_named(run):
    given = [f"init.from={run}", "model.n_layer=3", "model.n_head=4", "tokenizer=byte", "model.block_size=64"]
    with pytest.raises(UserFault) as caught:
        compose("train", given)
    assert sorted(caught.value.faults) == [
        f"model.n_head=4 does not fit init.from='{run}', whose weights have model.n_head=6. "
        "Leave it out: it is taken from there.",
        f"tokenizer.name='byte' does not fit init.from='{run}', whose weights have tokenizer.name='char'. "
        "Leave it out: it is taken from there.",
    ]
    with pytest.raises(UserFault, match=r"model\.n_embd=768 does not fit"):
        compose("train", [f"init.from={run}", "model=gpt2"])
    assert compose("train", [f"init.from={run}", "model.n_embd=48"]).model.n_embd == 48


@pytest.mark.parametrize("content", ["", "5", "[]", "{" * 5000, '{"model": {"n_layer": "many"}}', "null"])
def test_a_folder_that_says_nothing_gives_nothing(tmp_path, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert compose("train", [f"init.from={tmp_path}"]).model == ModelConfig()
    (tmp_path / "config.json").unlink()
    assert compose("train", [f"init.from={tmp_path}"]).model == ModelConfig()
