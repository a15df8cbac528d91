"""What another program's model is, as settings: a Hugging Face folder, nanoGPT's ckpt.pt, or a name on the hub.

It imports no other room, since composing a config (`init.from`) begins here.
"""

import functools
import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

from minigpt.faults import UserFault
from minigpt.files import read_json
from minigpt.redact import redact

VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"  # of vocab.bpe, GPT-2's merges
MARKED_SHA256 = "0ba0b8d2193a499569e78415a961afcb4ba6c8cec8b13ea85b057b7732804407"  # of MARKED (tokenizers/bpe.py)
HUB_FILES = ["config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json"]
HUB_FILES += ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]

# Field -> (setting of `model.`, the family's default for a file without the field).
_GPT2 = {
    "n_layer": ("n_layer", 12),
    "n_head": ("n_head", 12),
    "n_embd": ("n_embd", 768),
    "n_inner": ("n_hidden", 0),
    "n_positions": ("block_size", 1024),
    "activation_function": ("activation", "gelu_new"),
    "layer_norm_epsilon": ("norm_eps", 1e-5),
    "tie_word_embeddings": ("tied", True),
}
_LLAMA = {
    "num_hidden_layers": ("n_layer", 32),
    "num_attention_heads": ("n_head", 32),
    "num_key_value_heads": ("n_kv_head", 0),
    "head_dim": ("head_dim", 0),
    "hidden_size": ("n_embd", 4096),
    "intermediate_size": ("n_hidden", 11008),
    "max_position_embeddings": ("block_size", 2048),
    "hidden_act": ("activation", "silu"),
    "rms_norm_eps": ("norm_eps", 1e-6),
    "tie_word_embeddings": ("tied", False),
}
FIELDS: dict[str, dict[str, tuple[str, Any]]]
FIELDS = {"gpt2": _GPT2} | dict.fromkeys(("llama", "qwen2", "qwen3"), _LLAMA)  # whose files state what differs
# What a whole family has in common.
SHAPES: dict[str, dict[str, Any]] = {"gpt2": {"bias": True}} | {
    family: {"norm": "rmsnorm", "attention": "rotary", "qk_norm": "rmsnorm" if family == "qwen3" else "none"}
    for family in ("llama", "qwen2", "qwen3")
}
ACTIVATIONS = {
    "gpt2": {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu2": "relu_squared"},
    "llama": {"silu": "swiglu", "swish": "swiglu"},
}
ROPE = {  # of rope_type llama3
    "factor": "rope_factor",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "original_max_position_embeddings": "rope_original_context",
}
# Fields that change what is computed, and the only value of each that minigpt computes. Other fields of these families
# change no logit, or the names and shapes of weights, by which they are refused.
CHECKED: dict[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "auto_map": None,
    "quantization_config": None,
}


@functools.cache
def hub_folder(name: str) -> Path:
    """Return the folder of a model on Hugging Face's hub, `owner/name`, fetched by the hub's own library."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # of httpx, of the hub, of the disk
        reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:300].rstrip(".")
        wrong = f"'{name}' is no folder here (looked from {os.getcwd()})"
        why = f"Hugging Face's hub does not give a model of this name: {reason}"
        raise UserFault(f"{wrong}, and {why}. Give a run, a checkpoint or a model's folder") from None


def imported_settings(path: Path) -> tuple[dict[str, Any], int] | None:
    """Return the settings of `model.` that the weights in a folder, or a ckpt.pt, depend on, and their vocab_size.

    None if there is neither a Hugging Face folder nor nanoGPT's file.
    """
    if path.is_file():
        return _nanogpt_settings(path) if zipfile.is_zipfile(path) else None
    content = read_json(path / "config.json") if (path / "config.json").is_file() else None
    if not isinstance(content, dict) or not {"model_type", "architectures"} & content.keys():
        return None
    try:
        return _settings_of(content, str(path / "config.json"))
    except (TypeError, AttributeError, KeyError) as error:
        raise UserFault(f"{path / 'config.json'} lacks a value, or holds one of a wrong kind ({error})") from None


def _settings_of(content: dict[str, Any], origin: str) -> tuple[dict[str, Any], int]:
    family = content.get("model_type")
    if family not in FIELDS:
        raise UserFault(f"{origin}: model_type is {family!r}; minigpt knows {', '.join(FIELDS)}")
    fields = FIELDS[family]
    given = {key: value for key, value in content.items() if value is not None}
    strange = [key for key, plain in CHECKED.items() if given.get(key, plain) != plain]
    if strange or set(given.get("layer_types", ())) - {"full_attention"}:
        key = [*strange, "layer_types"][0]
        raise UserFault(f"{origin}: {key}={given[key]!r} changes what the model computes, and minigpt lacks it")
    model = dict(SHAPES[family]) | {setting: given.get(key, default) for key, (setting, default) in fields.items()}
    words = ACTIVATIONS["gpt2" if family == "gpt2" else "llama"]
    if model["activation"] not in words:
        raise UserFault(f"{origin}: the activation is {model['activation']!r}; for {family} wanted {min(words)}")
    model["activation"] = words[model["activation"]]
    if family != "gpt2":
        model |= _rotation(given, origin)
        model["bias"] = "qkv" if family == "qwen2" else "attention" if given.get("attention_bias") else "none"
        if given.get("mlp_bias") and family == "llama":
            model["bias"] = "all"  # without attention_bias the weights lack some
    vocab_size = given.get("vocab_size")
    if type(vocab_size) is not int or not 0 < vocab_size < 1 << 31:
        raise UserFault(f"{origin}: vocab_size is {vocab_size!r}; wanted a number of tokens")
    return {f"model.{setting}": value for setting, value in model.items()}, vocab_size


def _rotation(given: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the settings of rotary positions, from the fields of transformers before and since version 5."""
    rope = {"rope_theta": given.get("rope_theta", 10_000.0)}
    for key in ("rope_scaling", "rope_parameters"):
        rope |= given.get(key, {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    model = {"rope_theta": rope["rope_theta"]}
    if kind == "llama3":
        model |= {"rope_scaling": "llama3"} | {setting: rope[key] for key, setting in ROPE.items()}
    elif kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserFault(f"{origin}: {rope} are rotary positions that minigpt lacks; it has default and llama3")
    return model


def load_nanogpt(path: Path) -> dict[str, Any]:
    """Return the content of nanoGPT's ckpt.pt: `model_args`, `model` and more. No code in it is run."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if isinstance(content["model_args"]["vocab_size"], int) and isinstance(content["model"], dict):
            return content
        reason = "it holds no model_args and model"
    except Exception as error:  # of torch, zip and pickle
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    others = "Other files of torch.save hold pickles, which could run any code: they are not read"
    raise UserFault(f"{path} is not nanoGPT's ckpt.pt, or cut or damaged ({reason}). {others}")


def _nanogpt_settings(path: Path) -> tuple[dict[str, Any], int]:
    arguments = {key: value for key, value in load_nanogpt(path)["model_args"].items() if key != "dropout"}
    vocab_size = int(arguments.pop("vocab_size"))
    return {f"model.{key}": value for key, value in arguments.items()} | {"model.activation": "gelu"}, vocab_size


def tokenizer_settings(path: Path) -> dict[str, Any]:
    """Return the settings of `tokenizer.` that describe an imported folder's tokenizer.json; {} without one."""
    if not (path / "tokenizer.json").is_file():
        return {}
    name, tokens, _ = kind_of_tokenizer(read_json(path / "tokenizer.json"))
    return {"tokenizer.name": name} | ({"tokenizer.vocab_size": tokens + 1} if name == "bpe" else {})


def kind_of_tokenizer(content: Any) -> tuple[str, int, list[str]]:
    """Return our name for the kind of a Hugging Face tokenizer.json, its number of tokens, and control tokens.

    Its reader (minigpt/data/tokenizers/file.py) checks all of it, and decides whether it can be used.

    Returns:
        byte, char, bpe or gpt2 if its tokens are numbered as in ours, else "file"; how many tokens precede
        end-of-text; the control tokens that follow it, as conversations add them.
    """
    try:
        model, before = content["model"], content["pre_tokenizer"]
        splits = (before or {}).get("pretokenizers", [])
        if len(splits) == 2 and _sha256((splits[0].get("pattern") or {}).get("Regex", "")) == MARKED_SHA256:
            before = splits[1] | {"use_regex": True}  # our own, of a text with many combining marks
        ids, merges = dict(model["vocab"]), model["merges"]
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        for name in added:
            ids.pop(name, None)
        size = len(ids)
        if sorted(ids.values()) != list(range(size)) or content["normalizer"] or model.get("ignore_merges"):
            return "file", size, []
        if content["decoder"]["type"] == "Fuse" and not merges and before is None and not added:
            return "char", size, []
        names = sorted(added, key=added.__getitem__)
        numbered = [added[name] for name in names] == list(range(size, size + len(names)))
        special = all(token["special"] for token in content["added_tokens"])
        after = content.get("post_processor") or before  # it may put a token before each text
        plain = before["type"] == after["type"] == "ByteLevel" and not before.get("add_prefix_space")
        if not plain or names[:1] != ["<|endoftext|>"] or not numbered or not special:
            return "file", size, []
        in_our_order = ids.get("!") == ord("!")  # GPT-2, and most others, begin with the printable characters
        if not before.get("use_regex", True):
            return ("byte" if in_our_order and size == 256 else "file"), size, names[1:]
        pairs = "\n".join(pair if isinstance(pair, str) else " ".join(pair) for pair in merges)
        gpt2 = _sha256(f"#version: 0.2\n{pairs}\n") == VOCAB_SHA256
        return ("gpt2" if gpt2 and ids["!"] == 0 else "bpe" if in_our_order else "file"), size, names[1:]
    except (LookupError, TypeError, AttributeError, ValueError):
        return "file", 0, []


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
