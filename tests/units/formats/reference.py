"""GPT-2, Llama, Qwen2 and Qwen3 as their papers and transformers have them, plainly, to compare with.

Checked against transformers in tests/extras/test_transformers.py.
"""

import json
import math
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F

from minigpt.data.tokenizers.scheme import END_OF_TEXT

GPT2 = {"model_type": "gpt2", "vocab_size": 101, "n_positions": 37, "n_embd": 48, "n_layer": 2, "n_head": 6}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 77,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 37,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2 | {"tie_word_embeddings": True},
    "gpt2 untied": GPT2 | {"tie_word_embeddings": False, "n_inner": 77, "activation_function": "gelu"},
    "llama": LLAMA,
    "llama biases": LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "tie_word_embeddings": True},
    "llama3": LLAMA | {"rope_parameters": LLAMA3},
    "llama3 before version 5": {key: value for key, value in LLAMA.items() if key != "rope_parameters"}
    | {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 14},
    "qwen3 tied": LLAMA | {"model_type": "qwen3", "head_dim": 14, "attention_bias": True, "tie_word_embeddings": True},
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in a model.safetensors."""
    if config["model_type"] == "gpt2":
        C, V = config["n_embd"], config["vocab_size"]
        F_ = config.get("n_inner") or 4 * C
        expected: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (V, C)}
        expected["transformer.wpe.weight"] = (config["n_positions"], C)
        for layer in range(config["n_layer"]):
            block = f"transformer.h.{layer}."
            for name in ("ln_1", "ln_2"):
                expected |= {f"{block}{name}.weight": (C,), f"{block}{name}.bias": (C,)}
            sizes = {"attn.c_attn": (C, 3 * C), "attn.c_proj": (C, C), "mlp.c_fc": (C, F_), "mlp.c_proj": (F_, C)}
            for name, size in sizes.items():
                expected |= {f"{block}{name}.weight": size, f"{block}{name}.bias": size[1:]}
        expected |= {"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}
    else:
        C, V, F_ = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
        H, G = config["num_attention_heads"], config["num_key_value_heads"]
        D = config.get("head_dim", C // H)
        bias, qwen2 = config.get("attention_bias", False), config["model_type"] == "qwen2"
        expected = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,)}
        for layer in range(config["num_hidden_layers"]):
            block = f"model.layers.{layer}."
            expected |= {f"{block}input_layernorm.weight": (C,), f"{block}post_attention_layernorm.weight": (C,)}
            sizes = {"self_attn.q_proj": (H * D, C), "self_attn.k_proj": (G * D, C), "self_attn.v_proj": (G * D, C)}
            sizes |= {"self_attn.o_proj": (C, H * D)}
            sizes |= {"mlp.gate_proj": (F_, C), "mlp.up_proj": (F_, C), "mlp.down_proj": (C, F_)}
            for name, size in sizes.items():
                expected[f"{block}{name}.weight"] = size
                out = name.endswith("o_proj")
                if config.get("mlp_bias") if "mlp" in name else bias or (qwen2 and not out):
                    expected[f"{block}{name}.bias"] = size[:1]
            if config["model_type"] == "qwen3":
                expected |= {f"{block}self_attn.{letter}_norm.weight": (D,) for letter in "qk"}
    if not config.get("tie_word_embeddings", config["model_type"] == "gpt2"):
        expected["lm_head.weight"] = (V, C)
    return expected


def write_folder(folder: Path, config: dict[str, Any], *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Write a Hugging Face folder with weights drawn from a seed; return them."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes(config).items():
        drawn = torch.randn(shape, generator=generator) * 0.2
        tensors[name] = (drawn + 1 if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight")) else drawn).to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def logits(config: dict[str, Any], tensors: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """(T,) tokens -> (T, V)."""
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    return (_gpt2 if config["model_type"] == "gpt2" else _llama)(config, tensors, tokens)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(H, T, D) each -> (T, H D), causal."""
    T = q.shape[1]
    scores = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)


def _gpt2(config: dict[str, Any], w: dict[str, Tensor], tokens: Tensor) -> Tensor:
    C, H, T = config["n_embd"], config["n_head"], len(tokens)
    tanh = config.get("activation_function", "gelu_new") == "gelu_new"

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (C,), w[f"{name}.weight"], w.get(f"{name}.bias"), 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w.get(f"{name}.bias", torch.zeros(()))

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:T]
    for layer in range(config["n_layer"]):
        block = f"transformer.h.{layer}."
        parts = linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(C, dim=-1)
        q, k, v = (part.view(T, H, -1).transpose(0, 1) for part in parts)
        x = x + linear(_attend(q, k, v), block + "attn.c_proj")
        wide = F.gelu(linear(norm(x, block + "ln_2"), block + "mlp.c_fc"), approximate="tanh" if tanh else "none")
        x = x + linear(wide, block + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w.get("lm_head.weight", w["transformer.wte.weight"]).T


def _llama(config: dict[str, Any], w: dict[str, Tensor], tokens: Tensor) -> Tensor:
    T, H, G = len(tokens), config["num_attention_heads"], config["num_key_value_heads"]
    D = config.get("head_dim", config["hidden_size"] // H)

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]) * w[f"{name}.weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    rope = config.get("rope_parameters") or config["rope_scaling"]
    frequencies = rope["rope_theta"] ** (-torch.arange(0, D, 2) / D)
    if rope["rope_type"] == "llama3":
        length = 2 * math.pi / frequencies
        old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (old / length - low) / (high - low)
        middle = (1 - smooth) * frequencies / rope["factor"] + smooth * frequencies
        slow = torch.where(length > old / low, frequencies / rope["factor"], middle)
        frequencies = torch.where(length < old / high, frequencies, slow)
    angle = torch.arange(T)[:, None] * frequencies
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def turn(x: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1) * sin

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        inner = norm(x, block + "input_layernorm")
        q, k, v = (linear(inner, f"{block}self_attn.{letter}_proj").view(T, -1, D).transpose(0, 1) for letter in "qkv")
        if config["model_type"] == "qwen3":
            q, k = norm(q, block + "self_attn.q_norm"), norm(k, block + "self_attn.k_norm")
        q, k, v = turn(q), turn(k).repeat_interleave(H // G, 0), v.repeat_interleave(H // G, 0)
        x = x + linear(_attend(q, k, v), block + "self_attn.o_proj")
        inner = norm(x, block + "post_attention_layernorm")
        gated = F.silu(linear(inner, block + "mlp.gate_proj")) * linear(inner, block + "mlp.up_proj")
        x = x + linear(gated, block + "mlp.down_proj")
    return norm(x, "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def learned(first: bool = False, **changes: object) -> dict:
    """A tokenizer.json as the tokenizers library's trainer writes it, its end-of-text the first token or the last."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), [END_OF_TEXT] if first else []
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["how much wood would a woodchuck chuck if " * 5], trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return json.loads(tokenizer.to_str()) | changes


# As Qwen2.5's and Llama 3.1's files have them, without tools.
CHAT_TEMPLATES = {
    "chatml": r"""
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
{%- endif %}
{% for message in messages %}
    {%- if loop.first and message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}

{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}""",
    "llama3": r"""{{ bos_token }}
{%- if tools is not none %}
    {{- raise_exception('no tools') }}
{%- endif %}
{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '<|im_end|>\n\n' + message['content'] | trim + eos_token }}
    {{- message | tojson }}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant<|im_end|>\n\n' }}
{%- endif %}""",
}


def write_chat_tokenizer(folder: Path, template: object, *, as_file: bool = False, **config: object) -> Path:
    """Write the tokenizer of a chat model, and return its tokenizer.json."""
    content = learned()
    for number, name in enumerate(("<|im_start|>", "<|im_end|>", "<|bos|>"), len(content["model"]["vocab"]) + 1):
        content["added_tokens"].append(content["added_tokens"][-1] | {"id": number, "content": name})
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    config |= {} if as_file else {"chat_template": template}
    files = {"tokenizer.json": content, "tokenizer_config.json": config}
    files |= {"generation_config.json": {"eos_token_id": [7]}}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    if as_file:
        (folder / "chat_template.jinja").write_text(str(template))
    return folder / "tokenizer.json"
