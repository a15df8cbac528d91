"""The Hugging Face architecture that computes a model, its config.json, and its weights under their names."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minigpt.checkpoint.foreign import GPT2_NAMES, LLAMA_NAMES, TRANSPOSED, theirs
from minigpt.checkpoint.load import VOCABULARY, expected_shapes
from minigpt.config.foreign import ACTIVATIONS, FIELDS, ROPE
from minigpt.config.schema import ModelConfig
from minigpt.faults import UserFault
from minigpt.model.gpt import GPT, qk_norm_of

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# (QK norm, bias) -> the architecture with RMSNorm, rotary positions and SwiGLU that has them. Biases of queries, keys
# and values alone are Qwen2's, but transformers splits text as Qwen2 does for every model of that name: with a bias of
# zero after the attention the model is a Llama, too.
_ROTARY = {
    ("none", "none"): "llama",
    ("none", "attention"): "llama",
    ("none", "all"): "llama",
    ("none", "qkv"): "llama",
    ("rmsnorm", "none"): "qwen3",
    ("rmsnorm", "attention"): "qwen3",
    ("rmsnorm", "qkv"): "qwen3",
}


def family_of(config: ModelConfig) -> str:
    """Return the model_type that computes what this model does.

    Raises:
        UserFault: none does; it names every setting that prevents it.
    """
    qk_norm, bias = qk_norm_of(config) or "none", bias_word(config)
    if config.attention == "softmax" and config.norm == "layernorm":
        wanted = {
            "model.n_kv_head": config.n_kv_head in (0, config.n_head),
            "model.head_dim": config.head_dim in (0, config.n_embd // config.n_head),
            "model.qk_norm": qk_norm == "none",
            "model.activation": config.activation in ACTIVATIONS["gpt2"].values(),
        }
        family, shape = "gpt2", "GPT-2's (n_kv_head=n_head, qk_norm=none, an activation without a gate)"
    else:
        family = _ROTARY.get((qk_norm, bias), "")
        wanted = {
            "model.norm": config.norm == "rmsnorm",
            "model.attention": config.attention == "rotary",
            "model.qk_norm": qk_norm in ("none", "rmsnorm"),
            "model.activation": config.activation == "swiglu",
            "model.bias": bool(family) or qk_norm == "layernorm",
        }
        shape = "Llama's or Qwen's (norm=rmsnorm attention=rotary qk_norm=none|rmsnorm activation=swiglu bias=none)"
    if wrong := [key for key, fits in wanted.items() if not fits]:
        named = ", ".join(f"{key}={getattr(config, key.removeprefix('model.'))}" for key in wrong)
        raise UserFault(
            f"no architecture that other programs know computes {named}: nothing was written. The nearest shape is "
            f"{shape}. Train with it, as model=gpt2 or model=qwen3-nano do"
        )
    return family


def bias_word(config: ModelConfig) -> str:
    """Return model.bias as a word."""
    return config.bias if isinstance(config.bias, str) else "all" if config.bias else "none"


def config_json(model: GPT) -> dict[str, Any]:
    """Return the config.json of a model, without the fields that belong to its tokenizer.

    Raises:
        UserFault: no architecture computes it.
    """
    config, family = model.config, family_of(model.config)
    attention: Any = model.blocks[0].attention
    mlp: Any = model.blocks[0].mlp
    sizes = {"n_kv_head": attention.n_kv_head, "head_dim": attention.head_dim, "n_hidden": mlp.up.out_features}
    words = {ours: word for word, ours in reversed(ACTIVATIONS["gpt2" if family == "gpt2" else "llama"].items())}
    values = {**vars(config), **sizes, "activation": words[config.activation]}
    content: dict[str, Any] = {"architectures": [CLASSES[family]], "model_type": family, "vocab_size": model.vocab_size}
    content |= {key: values[setting] for key, (setting, _) in FIELDS[family].items()}
    if family == "gpt2":
        return content | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling == "llama3":
        rope |= {"rope_type": "llama3"} | {key: values[setting] for key, setting in ROPE.items()}
    # Versions before 5 of transformers, and programs that follow them, read the fields of the second line.
    content |= {"rope_parameters": rope, "attention_bias": bias_word(config) != "none"}
    content |= {"rope_theta": config.rope_theta, "rope_scaling": rope if config.rope_scaling == "llama3" else None}
    return content | ({"mlp_bias": bias_word(config) == "all"} if family == "llama" else {})


def complete_weights(model: GPT) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return a model's weights in fp32 on the CPU, with biases of zero where only the architecture has biases.

    The rows that pad the vocabulary are left out.
    """
    config = model.config
    bias = "all" if family_of(config) == "gpt2" else "attention" if config.bias == "qkv" else config.bias
    config = replace(config, bias=bias)
    own = model.state_dict()
    weights = {}
    for name, shape in expected_shapes(config, model.vocab_size, config.n_layer).items():
        tensor = own[name] if name in own else torch.zeros(shape)
        weights[name] = tensor[: model.vocab_size if name in VOCABULARY else None].detach().float().cpu()
    return config, weights


def their_weights(model: GPT) -> dict[str, Tensor]:
    """Return a model's weights under Hugging Face's names."""
    config, weights = complete_weights(model)
    names = GPT2_NAMES if config.attention == "softmax" else LLAMA_NAMES
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        parts = theirs(name, names)
        tensor = tensor.T if names is GPT2_NAMES and name.endswith(TRANSPOSED) else tensor
        rows = split_rows(model) if len(parts) == 3 else [len(tensor)]
        tensors |= {part: piece.contiguous() for part, piece in zip(parts, tensor.split(rows), strict=True)}
    return tensors


def split_rows(model: GPT) -> list[int]:
    """Return how many rows of `attention.qkv` are queries, keys and values."""
    attention: Any = model.blocks[0].attention
    return [attention.n_head * attention.head_dim] + 2 * [attention.n_kv_head * attention.head_dim]
