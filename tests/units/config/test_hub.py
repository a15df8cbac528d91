"""Weights named as on Hugging Face's hub. The hub is a stand-in here: no test needs a network."""

import sys
import types

import pytest

from minigpt import imported_models
from minigpt.checkpoint.load import find_checkpoint
from minigpt.config.compose import compose
from minigpt.faults import UserFault

LLAMA = '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "vocab_size": 99}'


@pytest.fixture
def asked(folder, monkeypatch):
    """The names that the hub was asked for; it has one model."""
    (folder / "cache").mkdir()
    (folder / "cache/config.json").write_text(LLAMA)
    names = []

    def snapshot_download(name, *, allow_patterns):
        names.append(name)
        if name != "owner/small-llama":
            raise OSError(f"404 for https://user:secret@hub/{name}\nNot found")
        assert not {"*.bin", "*.py"} & set(allow_patterns)  # no pickles, no code
        return str(folder / "cache")

    module = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    imported_models.hub_folder.cache_clear()
    yield names
    imported_models.hub_folder.cache_clear()


def test_a_name_on_the_hub_brings_its_architecture_and_is_fetched_once(asked, tmp_path):
    config = compose("train", ["init.from=owner/small-llama", "model.block_size=64"])
    assert (config.model.n_layer, config.model.n_head, config.model.activation) == (2, 4, "swiglu")
    assert config.init.source == "owner/small-llama"
    assert find_checkpoint("owner/small-llama") == tmp_path / "cache"
    assert asked == ["owner/small-llama"]


def test_a_model_that_the_hub_lacks_is_named_without_secrets(asked):
    with pytest.raises(UserFault, match=r"'owner/none' is no folder here .* hub does not give a model") as caught:
        compose("train", ["init.from=owner/none"])
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["runs/none", "here/none", "./owner/none", "a/b/c", "none", "/owner/none", "../a/b"])
def test_a_path_is_never_asked_for_on_the_hub(asked, tmp_path, path):
    (tmp_path / "here").mkdir()
    with pytest.raises(UserFault, match="does not exist"):
        compose("sample", [f"checkpoint={path}"])
    assert asked == []
