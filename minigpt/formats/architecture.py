"""Which Hugging Face architecture computes a model, its config.json, and the way back to a config."""

from pathlib import Path
from typing import Any

from minigpt.config.check import stored_config
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.faults import UserFault
from minigpt.imported_models import ACTIVATIONS, FIELDS, ROPE, imported_settings
from minigpt.model.gpt import GPT, qk_norm_of

CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def family_of(config: ModelConfig) -> str:
    """Return the model_type that computes what this model does; a fault names every setting that prevents it."""
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
        # Biases of queries, keys and values alone are Qwen2's, but transformers splits text as Qwen2 does for every
        # model of that name: with a bias of zero after the attention the model is a Llama, too.
        family = "qwen3" if qk_norm == "rmsnorm" else "llama"
        wanted = {
            "model.norm": config.norm == "rmsnorm",
            "model.attention": config.attention == "rotary",
            "model.qk_norm": qk_norm in ("none", "rmsnorm"),
            "model.activation": config.activation == "swiglu",
            "model.bias": family == "llama" or bias != "all",
        }
        shape = "Llama's or Qwen's (norm=rmsnorm attention=rotary qk_norm=none|rmsnorm activation=swiglu bias=none)"
    if wrong := [key for key, fits in wanted.items() if not fits]:
        named = ", ".join(f"{key}={getattr(config, key.removeprefix('model.'))}" for key in wrong)
        lacking = f"no architecture that other programs know computes {named}: nothing was written"
        remedy = "Train with it, as model=gpt2 or model=qwen3-nano do"
        raise UserFault(f"{lacking}. The nearest shape is {shape}. {remedy}")
    return family


def bias_word(config: ModelConfig) -> str:
    """Return model.bias as a word."""
    return config.bias if isinstance(config.bias, str) else "all" if config.bias else "none"


def config_json(model: GPT) -> dict[str, Any]:
    """Return the config.json of a model, without the fields that belong to its tokenizer."""
    config, family = model.config, family_of(model.config)
    attention: Any = model.blocks[0].attention
    mlp: Any = model.blocks[0].mlp
    sizes = {"n_kv_head": attention.n_kv_head, "head_dim": attention.head_dim, "n_hidden": mlp.up.out_features}
    words = {name: word for word, name in reversed(ACTIVATIONS["gpt2" if family == "gpt2" else "llama"].items())}
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


def is_imported(path: Path) -> bool:
    """Return whether another program's model is there; one that minigpt can't compute is a fault."""
    return not (path / "MANIFEST.json").is_file() and imported_settings(path) is not None


def read_imported_config(path: Path) -> tuple[TrainConfig, int]:
    """Return the architecture as a config, whose other settings are the defaults, and the size of the vocabulary."""
    settings = imported_settings(path)
    assert settings is not None
    try:
        config = stored_config(settings[0])
    except UserFault as fault:
        raise UserFault(f"{path} can't be used: {fault}") from None
    return config, settings[1]
