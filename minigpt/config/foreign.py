"""The architecture of a model that another program made, as settings: a Hugging Face folder, or nanoGPT's ckpt.pt.

Standard library only. A field of a config.json either gives a setting, changes no logit, or must have the one value
that our block computes; any other field is refused by name.
"""

import hashlib
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

from minigpt.config.convert import shown
from minigpt.config.plain_pickle import read_pickle
from minigpt.faults import UserFault

MAX_CONFIG = 1 << 22  # bytes of a config.json
MAX_TOKENIZER = 1 << 27  # of a tokenizer.json
MAX_PICKLE = 1 << 24  # of the pickle in a ckpt.pt (its tensors are in other files), and of a meta.pkl
ZIP_FAULTS = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, struct.error)
VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"  # of vocab.bpe, GPT-2's merges

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
_QWEN2 = _LLAMA | {
    "num_key_value_heads": ("n_kv_head", 32),
    "intermediate_size": ("n_hidden", 22016),
    "max_position_embeddings": ("block_size", 32768),
}
FIELDS: dict[str, dict[str, tuple[str, Any]]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": _QWEN2 | {"head_dim": ("head_dim", 128)},
}
VOCAB_SIZES = {"gpt2": 50257, "llama": 32000, "qwen2": 151936, "qwen3": 151936}
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
_HARMLESS = """
    architectures model_type vocab_size transformers_version dtype torch_dtype use_cache bos_token_id eos_token_id
    pad_token_id sep_token_id cls_token_id unk_token_id decoder_start_token_id initializer_range attention_dropout
    resid_pdrop embd_pdrop attn_pdrop summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout task_specific_params pretraining_tp id2label label2id problem_type num_labels prefix
    finetuning_task output_attentions output_hidden_states return_dict tokenizer_class max_window_layers license
    gradient_checkpointing attn_implementation n_ctx name_or_path is_decoder chunk_size_feed_forward temperature
    top_k top_p do_sample max_length rope_theta rope_scaling rope_parameters attention_bias mlp_bias sliding_window
"""
HARMLESS = frozenset(_HARMLESS.split())  # fields that change no logit, or that are read apart from FIELDS
# Fields that change results, and the values with which they don't.
_SILENT: dict[str, Any] = {
    "use_sliding_window": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
}


def foreign_settings(path: Path) -> tuple[dict[str, Any], int] | None:
    """Return the settings of `model.` that a foreign model's weights depend on, and its vocab_size.

    Args:
        path: a folder, or a file ckpt.pt.

    Returns:
        None if it is neither a Hugging Face folder nor nanoGPT's file.

    Raises:
        UserFault: it is one of them, but of an architecture or with a field that minigpt can't compute.
    """
    if path.is_file():
        return _nanogpt_settings(path) if zipfile.is_zipfile(path) else None
    content = _read_json(path / "config.json", MAX_CONFIG)
    if not isinstance(content, dict) or not {"model_type", "architectures"} & content.keys():
        return None
    try:
        return settings_of(content, str(path / "config.json"))
    except (TypeError, AttributeError) as error:
        raise UserFault(f"{path / 'config.json'} holds a value of a wrong kind ({error})") from None


def settings_of(content: dict[str, Any], origin: str) -> tuple[dict[str, Any], int]:
    """Return what `foreign_settings` does, from the content of a config.json.

    Raises:
        UserFault: as `foreign_settings`.
    """
    family = content.get("model_type")
    if family not in FIELDS:
        raise UserFault(f"{origin}: model_type is {shown(family)}; minigpt knows {', '.join(FIELDS)}")
    fields = FIELDS[family]
    given = {key: value for key, value in content.items() if value is not None}
    for key, value in given.items():
        if key.startswith("_") or key in fields or key in HARMLESS:
            continue
        plain = set(value) <= {"full_attention"} if key == "layer_types" else _SILENT.get(key, ...) == value
        if not plain:
            raise UserFault(f"{origin}: {key}={shown(value)} changes what the model computes, and minigpt lacks it")
    if "num_key_value_heads" in content and content["num_key_value_heads"] is None:  # as transformers reads it
        given["num_key_value_heads"] = given.get("num_attention_heads", 32)
    model = dict(SHAPES[family]) | {setting: given.get(key, default) for key, (setting, default) in fields.items()}
    words = ACTIVATIONS["gpt2" if family == "gpt2" else "llama"]
    if model["activation"] not in words:
        raise UserFault(f"{origin}: the activation is {shown(model['activation'])}; for {family} wanted {min(words)}")
    model["activation"] = words[model["activation"]]
    if family != "gpt2":
        model |= _rotation(given, origin)
        model["bias"] = "qkv" if family == "qwen2" else "attention" if given.get("attention_bias") else "none"
        if given.get("mlp_bias") and family == "llama":
            if model["bias"] == "none":
                raise UserFault(f"{origin}: mlp_bias without attention_bias is a block that minigpt lacks")
            model["bias"] = "all"
    vocab_size = given.get("vocab_size", VOCAB_SIZES[family])
    if not isinstance(vocab_size, int) or not 0 < vocab_size < 1 << 31:
        raise UserFault(f"{origin}: vocab_size is {shown(vocab_size)}; wanted a number of tokens")
    return {f"model.{setting}": value for setting, value in model.items()}, vocab_size


def _rotation(given: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the settings of rotary positions, from the fields of transformers before and since version 5."""
    rope = {"rope_theta": given.get("rope_theta", 10_000.0)}
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(given.get(key, {}), dict):
            raise UserFault(f"{origin}: {key} is {shown(given[key])}; wanted a mapping")
        rope |= given.get(key, {})
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    model = {"rope_theta": rope.pop("rope_theta")}
    if kind == "llama3":
        model |= {"rope_scaling": "llama3"} | {ours: rope.pop(key) for key, ours in ROPE.items() if key in rope}
        if missing := [key for key, ours in ROPE.items() if ours not in model]:
            raise UserFault(f"{origin}: rope_type llama3 without {missing[0]}")
    elif kind != "default":
        raise UserFault(f"{origin}: rope_type={shown(kind)} is not known; minigpt has default and llama3")
    rope = {key: value for key, value in rope.items() if value is not None and _SILENT.get(key, ...) != value}
    if rope:
        raise UserFault(f"{origin}: {min(rope)}={shown(rope[min(rope)])} of rope_parameters is not known")
    return model


def read_nanogpt(path: Path) -> tuple[zipfile.ZipFile, str, dict[str, Any]]:
    """Open nanoGPT's ckpt.pt, calling nothing that it names.

    Returns:
        The archive, the folder in it, and the content of its pickle: `model_args`, and `model`, a state dict of calls.

    Raises:
        UserFault: it is not such a file.
    """
    try:
        archive = zipfile.ZipFile(path)
        pickles = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())  # as torch.save does
        small = stored and len(pickles) == 1 and pickles[0].file_size <= MAX_PICKLE
        pickled = archive.read(pickles[0]) if small else None
    except ZIP_FAULTS as error:
        raise UserFault(f"{path} is cut or damaged ({type(error).__name__}: {error}). Copy it again") from None
    content: Any = read_pickle(pickled, str(path)) if pickled is not None else None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), dict) for key in ("model_args", "model")):
        raise UserFault(
            f"{path} is not nanoGPT's ckpt.pt, which holds model_args and model. Other files of torch.save hold "
            "pickles, which could run any code: they are not read"
        )
    return archive, pickles[0].filename.removesuffix("data.pkl"), content


def _nanogpt_settings(path: Path) -> tuple[dict[str, Any], int]:
    arguments = dict(read_nanogpt(path)[2]["model_args"])
    arguments.pop("dropout", None)
    vocab_size = arguments.pop("vocab_size", None)
    known = {key: arguments.pop(key, None) for key in ("n_layer", "n_head", "n_embd", "block_size", "bias")}
    plain = all(isinstance(value, int) and 0 <= value < 1 << 31 for value in (*known.values(), vocab_size))
    if arguments or not plain:
        raise UserFault(f"{path}: its model_args are not nanoGPT's (n_layer, n_head, n_embd, block_size, bias ...)")
    return {f"model.{key}": value for key, value in known.items()} | {"model.activation": "gelu"}, vocab_size


def tokenizer_settings(path: Path) -> dict[str, Any]:
    """Return the settings of `tokenizer.` that a foreign folder's tokenizer.json stands for; {} without one."""
    content = _read_json(path / "tokenizer.json", MAX_TOKENIZER)
    if content is None:
        return {}
    name, tokens = kind_of_tokenizer(content)
    return {"tokenizer.name": name} | ({"tokenizer.vocab_size": tokens + 1} if name == "bpe" else {})


def kind_of_tokenizer(content: Any) -> tuple[str, int]:
    """Return our name for the kind of a Hugging Face tokenizer.json, and its number of tokens without end-of-text.

    Its reader (minigpt/data/tokenizers/file.py) checks all of it, and decides whether it can be used.

    Returns:
        byte, char, bpe or gpt2 if its tokens are numbered as in ours; else "file".
    """
    try:
        model, before = content["model"], content["pre_tokenizer"]
        ids, merges = dict(model["vocab"]), model["merges"]
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        end = ids.pop("<|endoftext|>", None) if added else None
        size = len(ids)
        if sorted(ids.values()) != list(range(size)) or content["normalizer"] or model.get("ignore_merges"):
            return "file", size
        if content["decoder"]["type"] == "Fuse" and not merges and before is None and not added:
            return "char", size
        if before["type"] != "ByteLevel" or added != {"<|endoftext|>": size} or end not in (None, size):
            return "file", size
        in_our_order = ids.get("!") == ord("!")  # GPT-2, and most others, begin with the printable characters
        if not before.get("use_regex", True):
            return ("byte" if in_our_order and size == 256 else "file"), size
        pairs = "\n".join(pair if isinstance(pair, str) else " ".join(pair) for pair in merges)
        gpt2 = hashlib.sha256(f"#version: 0.2\n{pairs}\n".encode()).hexdigest() == VOCAB_SHA256
        return ("gpt2" if gpt2 and ids["!"] == 0 else "bpe" if in_our_order else "file"), size
    except (LookupError, TypeError, AttributeError, ValueError):
        return "file", 0


def _read_json(path: Path, most: int) -> Any:
    if not path.is_file():  # reading a foreign pipe might never end
        return None
    if (size := path.stat().st_size) > most:
        raise UserFault(f"{path} is {size:,} bytes; at most {most:,} are read")
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
