"""Faults that an export could have, put into what was written or read: the printed proof catches each."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minigpt.attention.layers import CausalSelfAttention
from minigpt.checkpoint.load import LoadedCheckpoint
from minigpt.config.schema import ModelConfig, TokenizerConfig, TrainConfig
from minigpt.data.tokenizer import build_tokenizer
from minigpt.export.command import TOLERANCE
from minigpt.export.gguf import interleave
from minigpt.export.huggingface import write_huggingface
from minigpt.export.proof import Reloaded, prove, sample_of
from minigpt.export.reload import reload_huggingface
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT

MODERN = {"norm": "rmsnorm", "attention": "rotary", "activation": "swiglu", "norm_eps": 1e-6, "rope_theta": 1e6}
SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64}
SHAPES = {
    "gpt2": ModelConfig(**SIZES),
    "llama": ModelConfig(**SIZES, **MODERN, qk_norm="none", bias="attention", n_kv_head=2),
    "qwen3": ModelConfig(**SIZES, **MODERN, qk_norm="rmsnorm", bias="none", head_dim=10),
}


@pytest.fixture(autouse=True)
def _no_transformers(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "transformers" else real(name))


@pytest.fixture
def few_strings(monkeypatch):
    """To compare tokenizers over: a fault shows in a tenth of them, too."""
    monkeypatch.setattr("minigpt.export.proof.STRINGS", 1000)


def model(shape: str, tmp_path) -> LoadedCheckpoint:
    """A model with weights as large as trained ones, and a tokenizer with merges."""
    text = "how much wood would a woodchuck chuck if a woodchuck could chuck wood " * 9
    tokenizer = build_tokenizer("bpe", vocab_size=300, train=[[text.encode()]])
    torch.manual_seed(1)
    gpt = GPT(SHAPES[shape], tokenizer.vocab_size)
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter += 0.15 * torch.randn_like(parameter)
    config = TrainConfig(model=SHAPES[shape], tokenizer=TokenizerConfig(name="bpe"))
    return LoadedCheckpoint(gpt.eval(), tokenizer, config, {}, tmp_path)


def proof(loaded, folder) -> list[str]:
    reloaded = reload_huggingface(folder)
    return prove(loaded, sample_of(loaded, str(folder), "best"), reloaded, tolerance=TOLERANCE["f32"])


def written(loaded, tmp_path):
    write_huggingface(tmp_path / "out", loaded.model, loaded.tokenizer)
    return tmp_path / "out"


def change_config(folder, **values):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def change_weights(folder, change):
    tensors = {name: change(name, tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None},
        folder / "model.safetensors",
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_fault_the_proof_holds(tmp_path, monkeypatch, shape):
    count = 10_000 if shape == "gpt2" else 500  # the tokenizer is the same
    monkeypatch.setattr("minigpt.export.proof.STRINGS", count)
    lines = proof(loaded := model(shape, tmp_path), written(loaded, tmp_path))
    assert "0 differences in ids and 0 in text" in lines[-1]
    assert f"and {count:,} strings" in lines[-1]


def interleaved(folder):
    change_weights(folder, lambda name, w: interleave(w, 8) if "q_proj" in name or "k_proj" in name else w)


def c_proj_as_it_is(folder):
    change_weights(folder, lambda name, w: w.T if name.endswith("attn.c_proj.weight") else w)


def theta_missing(folder):
    change_config(folder, rope_theta=None, rope_parameters=None)


def another_epsilon(folder):
    change_config(folder, rms_norm_eps=1e-3)


def tie_omitted(folder):
    change_config(folder, tie_word_embeddings=None)


def biases_denied(folder):
    change_config(folder, attention_bias=False)


def biases_dropped(folder):
    change_weights(folder, lambda name, w: None if name.endswith("bias") else w)
    change_config(folder, attention_bias=False)


def rows_kept(folder):
    change_weights(folder, lambda name, w: torch.nn.functional.pad(w, (0, 0, 0, 20)) if "embed_tokens" in name else w)


def rows_kept_and_counted(folder):
    rows_kept(folder)
    change_config(folder, vocab_size=json.loads((folder / "config.json").read_text())["vocab_size"] + 20)


def merges_swapped(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    merges = content["model"]["merges"]
    merges[3], merges[4] = merges[4], merges[3]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        ("llama", interleaved),
        ("gpt2", c_proj_as_it_is),
        ("qwen3", theta_missing),
        ("qwen3", another_epsilon),
        ("qwen3", tie_omitted),
        ("llama", biases_denied),
        ("llama", biases_dropped),
        ("qwen3", rows_kept),
        ("qwen3", rows_kept_and_counted),
        ("qwen3", merges_swapped),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_fault_in_what_was_written_is_caught(tmp_path, shape, fault, few_strings):
    loaded = model(shape, tmp_path)
    folder = written(loaded, tmp_path)
    fault(folder)
    with pytest.raises((RuntimeError, UserFault)):
        proof(loaded, folder)


def test_two_swapped_merges_are_caught_by_the_lists_themselves(tmp_path, few_strings):
    """No string need show them."""
    loaded = model("qwen3", tmp_path)
    whole = reload_huggingface(written(loaded, tmp_path))
    merges = list(whole.merges)
    merges[3], merges[4] = merges[4], merges[3]
    swapped = Reloaded(whole.by, whole.logits, whole.tokens_of, whole.text_of, merges)
    with pytest.raises(RuntimeError, match=r"0 differences in ids and 0 in text .* merges DIFFER"):
        prove(loaded, sample_of(loaded, "", "best"), swapped, tolerance=TOLERANCE["f32"])


def test_a_norm_after_the_rotation_is_caught(tmp_path, monkeypatch, few_strings):
    loaded = model("qwen3", tmp_path)
    folder = written(loaded, tmp_path)
    whole = reload_huggingface(folder)
    plain = CausalSelfAttention.norm_and_turn

    def turned_first(self, qk, angles):
        norm, self.qk_norm = self.qk_norm, None
        try:
            return norm(plain(self, qk, angles))
        finally:
            self.qk_norm = norm

    def logits(tokens):
        with monkeypatch.context() as patched:
            patched.setattr(CausalSelfAttention, "norm_and_turn", turned_first)
            return whole.logits(tokens)

    faulty = Reloaded(whole.by, logits, whole.tokens_of, whole.text_of, whole.merges)
    with pytest.raises(RuntimeError, match="Logits  largest difference"):
        prove(loaded, sample_of(loaded, str(folder), "best"), faulty, tolerance=TOLERANCE["f32"])
