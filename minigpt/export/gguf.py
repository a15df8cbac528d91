"""A model as a GGUF file, which llama.cpp and Ollama run, and reading it back. Needs the package `gguf`."""

import importlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.checkpoint.foreign import theirs, to_ours
from minigpt.checkpoint.load import expected_shapes, load_weights, resize_vocabulary
from minigpt.config.convert import from_dict
from minigpt.config.foreign import settings_of
from minigpt.config.schema import TrainConfig
from minigpt.data.chat.roles import CONTROL as CONTROLS
from minigpt.data.chat.roles import END, has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.export.architecture import bias_word, complete_weights, config_json, family_of, split_rows
from minigpt.export.proof import Reloaded
from minigpt.export.reload import with_tokenizers
from minigpt.export.tokenizer_json import GO_TEMPLATE, TEMPLATE, as_text, tokenizer_json
from minigpt.faults import UserFault
from minigpt.model.empty import empty_gpt
from minigpt.model.gpt import GPT

NAMES = {
    "block": "blk.{}.",
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "norm_1": "attn_norm",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.out": "attn_output",
    "norm_2": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "final_norm": "output_norm",
    "output": "output",
}
STACKED = {"attention.qkv": "attn_qkv"}  # GPT-2
APART = {"attention.qkv": "attn_q attn_k attn_v"}
# Fields of config.json -> keys of GGUF, which follow the architecture's name.
KEYS = {
    "gpt2": {
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_head": "attention.head_count",
        "n_inner": "feed_forward_length",
        "n_positions": "context_length",
        "layer_norm_epsilon": "attention.layer_norm_epsilon",
    },
    "llama": {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
    },
}
FACTORS = "rope_freqs.weight"  # what each pair's frequency is divided by
SPACE = "\u2581"  # a space, in vocabularies of SentencePiece
NORMAL, CONTROL = 1, 3  # kinds of tokens


class Slowed:
    """A rotation whose pairs are slowed by factors that a file names."""

    def __init__(self, factors: Tensor):
        self.factors = factors

    def slowed(self, frequencies: Tensor) -> Tensor:
        """Return the new frequency of each pair, as `Llama3Scaling` does."""
        return frequencies / self.factors


def names_of(family: str) -> dict[str, str]:
    """Return GGUF's names for the parts of a model."""
    return NAMES | (STACKED if family == "gpt2" else APART)


def refuse_what_llama_cpp_lacks(model: GPT, tokenizer: Tokenizer | None) -> Tokenizer:
    """Refuse a model that a Hugging Face folder can express and llama.cpp can't; return the tokenizer, which is needed.

    Raises:
        UserFault: llama.cpp lacks something; all reasons are named.
    """
    config, family = model.config, family_of(model.config)
    reasons = []
    if family == "gpt2" and config.activation != "gelu_tanh":
        reasons.append(f"llama.cpp's gpt2 computes gelu_tanh, not model.activation={config.activation}")
    if family == "qwen3" and bias_word(config) != "none":
        reasons.append(f"llama.cpp's qwen3 has no biases, and this model has model.bias={config.bias}")
    if family != "llama" and config.rope_scaling != "none":
        reasons.append(f"llama.cpp's {family} has no model.rope_scaling={config.rope_scaling}")
    if tokenizer is None:
        reasons.append("the file must hold a tokenizer, and this model has none that minigpt can use")
    elif tokenizer.rules is not None:
        reasons.append("llama.cpp needs the name of this tokenizer's pattern, which tokenizer=file does not hold")
    elif tokenizer.vocab_size != model.vocab_size:
        reasons.append(f"the model has {model.vocab_size:,} tokens and its tokenizer {tokenizer.vocab_size:,}")
    elif tokenizer.name == "char" and SPACE in tokenizer.decode(range(tokenizer.vocab_size)):
        reasons.append("the alphabet holds U+2581, which llama.cpp takes for a space")
    if reasons or tokenizer is None:
        raise UserFault(f"format=gguf can't express this model: {'; '.join(reasons)}. Nothing was written")
    return tokenizer


def write_gguf(folder: Path, model: GPT, tokenizer: Tokenizer | None, kind: str) -> Path:
    """Make a folder and write the model, and a Modelfile for Ollama, into it.

    Args:
        folder: to make.
        model: to write.
        tokenizer: the model's.
        kind: type of the matrices: f32, f16 or q8_0. Vectors and positions stay f32.

    Returns:
        The path of the file.

    Raises:
        UserFault: llama.cpp can't compute the model; nothing was written.
    """
    gguf: Any = importlib.import_module("gguf")
    tokenizer = refuse_what_llama_cpp_lacks(model, tokenizer)
    vocabulary = _vocabulary(tokenizer)
    family, content = family_of(model.config), config_json(model)
    folder.mkdir(parents=True)
    file = folder / f"model-{kind}.gguf"
    writer = gguf.GGUFWriter(file, family)
    kinds = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(getattr(gguf.LlamaFileType, kinds[kind]))
    numbers = {key: content[field] for field, key in KEYS["gpt2" if family == "gpt2" else "llama"].items()}
    if family != "gpt2":
        numbers |= dict.fromkeys(("attention.value_length", "rope.dimension_count"), content["head_dim"])
    for key, value in numbers.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{family}.{key}", value)
    for key, value in vocabulary.items():
        writer.add_key_value(f"tokenizer.ggml.{key}", value, *_types(gguf, value))
    if has_roles(tokenizer):
        writer.add_chat_template(TEMPLATE)
    for name, tensor in _their_weights(model, family).items():
        stored = _kind_of(gguf, name, tensor, kind)
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "Modelfile").write_text(modelfile(file.name, tokenizer, model.config.block_size))
    return file


def modelfile(name: str, tokenizer: Tokenizer, block_size: int) -> str:
    """Return the Modelfile for Ollama, which ignores the template inside the GGUF file `name`."""
    chat = has_roles(tokenizer)
    lines = [f"FROM ./{name}", f'TEMPLATE """{GO_TEMPLATE if chat else "{{ .Prompt }}"}"""']
    lines += [f"PARAMETER num_ctx {block_size}"]
    lines += [f'PARAMETER stop "{control}"' for control in CONTROLS if chat]
    return "\n".join([*lines, ""])


def _types(gguf: Any, value: Any) -> tuple[Any, ...]:
    """Return the type of a value, and for a list also that of its elements."""
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
    if not isinstance(value, list):
        return (getattr(gguf.GGUFValueType, kinds[type(value)]),)
    inner = "INT32" if isinstance(value[0], int) else kinds[type(value[0])]
    return gguf.GGUFValueType.ARRAY, getattr(gguf.GGUFValueType, inner)


def _kind_of(gguf: Any, name: str, tensor: Tensor, kind: str) -> Any:
    kinds = gguf.GGMLQuantizationType
    if tensor.dim() < 2 or name.startswith("position_embd") or kind == "f32":
        return kinds.F32
    return kinds.Q8_0 if kind == "q8_0" and tensor.shape[-1] % 32 == 0 else kinds.F16  # blocks of 32


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the keys of a tokenizer: byte-level BPE with GPT-2's pattern, or SentencePiece's table for char."""
    described = tokenizer_json(tokenizer)["model"]
    texts = sorted(described["vocab"], key=described["vocab"].__getitem__)
    end = tokenizer.eot if tokenizer.eot is not None else tokenizer.vocab_size - 1  # without one llama.cpp takes 11
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": texts,
        "token_type": [NORMAL] * len(texts),
        "merges": [" ".join(merge) for merge in described["merges"]] or [""],  # the key must be there and not be empty
        "bos_token_id": end,
        "eos_token_id": end,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    if tokenizer.eot is not None:
        for token in tokenizer.special.values():
            keys["token_type"][token] = CONTROL
        if has_roles(tokenizer):
            keys["eos_token_id"] = tokenizer.special[END]
    elif all(text.isascii() for text in texts):
        keys["tokens"] = [as_text(text.encode()) for text in texts]
    else:
        keys |= {"model": "llama", "tokens": [text.replace(" ", SPACE) for text in texts], "add_space_prefix": False}
        keys |= {"scores": [0.0] * len(texts)}
    return keys


def _their_weights(model: GPT, family: str) -> dict[str, Tensor]:
    config, weights = complete_weights(model)
    attention: Any = model.blocks[0].attention
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        parts = theirs(name, names_of(family))
        rows = split_rows(model) if len(parts) == 3 else [len(tensor)]
        pieces = list(tensor.split(rows))
        if family == "llama" and len(parts) == 3:  # its rotation turns neighbours: 0 and 1, 2 and 3 ...
            pieces[:2] = [interleave(piece, attention.head_dim) for piece in pieces[:2]]
        tensors |= {part: piece.contiguous() for part, piece in zip(parts, pieces, strict=True)}
    scaling = attention.rope[1]
    if attention.rotary and scaling is not None:
        pairs = torch.arange(attention.head_dim // 2)
        frequencies = config.rope_theta ** (-2 * pairs / attention.head_dim)
        tensors[FACTORS] = frequencies / scaling.slowed(frequencies)
    return tensors


def interleave(rows: Tensor, D: int) -> Tensor:
    """Return the rows of each head as 0, D/2, 1, D/2 + 1 ..."""
    return rows.unflatten(0, (-1, 2, D // 2)).transpose(1, 2).flatten(0, 2)


def halve(rows: Tensor, D: int) -> Tensor:
    """Undo `interleave`."""
    return rows.unflatten(0, (-1, D // 2, 2)).transpose(1, 2).flatten(0, 2)


def read_gguf(file: Path) -> Reloaded:
    """Read a file of `write_gguf` back, with the architecture, numbers and tokenizer that the file states.

    Raises:
        UserFault: its tensors are not those that its keys describe.
    """
    gguf: Any = importlib.import_module("gguf")
    reader = gguf.GGUFReader(file)
    fields: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {
        each.name: torch.from_numpy(np.array(gguf.quants.dequantize(each.data, each.tensor_type)))
        for each in reader.tensors
    }
    model = _model_of(fields, tensors, str(file))
    by = f"the package gguf {importlib.metadata.version('gguf')} and minigpt's own importer"
    return with_tokenizers(by, model, json.dumps(_tokenizer_json_of(fields)))


def _model_of(fields: Mapping[str, Any], tensors: dict[str, Tensor], origin: str) -> GPT:
    family = fields["general.architecture"]
    keys = KEYS["gpt2" if family == "gpt2" else "llama"]
    content = {field: fields[f"{family}.{key}"] for field, key in keys.items() if f"{family}.{key}" in fields}
    content |= {"model_type": family, "vocab_size": len(fields["tokenizer.ggml.tokens"])}
    content |= {"tie_word_embeddings": "output.weight" not in tensors}
    content |= {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    settings, vocab_size = settings_of(content, origin)
    config = from_dict(TrainConfig, settings).model
    factors = tensors.pop(FACTORS, None)
    if family == "llama":
        D = content["head_dim"]
        for name in [name for name in tensors if ".attn_q." in name or ".attn_k." in name]:
            tensors[name] = halve(tensors[name], D)
    weights = to_ours(tensors, expected_shapes(config, vocab_size, config.n_layer), names_of(family), False, origin)
    model = empty_gpt(config, vocab_size)
    load_weights(model, resize_vocabulary(weights, model), origin)
    if factors is not None:
        for block in model.blocks:
            attention: Any = block.attention
            attention.rope = (attention.rope[0], Slowed(factors))
    return model.eval()


def _tokenizer_json_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json with which the `tokenizers` library does what llama.cpp does with these keys."""
    keys = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}
    tokens, merges = keys["tokens"], [merge.split(" ") for merge in keys["merges"] if merge]
    byte_level: dict[str, Any] | None = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if keys["model"] == "llama":
        tokens, byte_level = [token.replace(SPACE, " ") for token in tokens], None
    elif keys["pre"] != "gpt-2":
        raise UserFault(f"the tokenizer's pre is {keys['pre']}; wanted gpt-2, which splits text as ours do")
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": token, "content": tokens[token], **plain, "special": True}
        for token, kind in enumerate(keys["token_type"])
        if kind == CONTROL
    ]
    model = {"type": "BPE", "vocab": {text: token for token, text in enumerate(tokens)}, "merges": merges}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level or {"type": "Fuse"},
        "model": model | {"fuse_unk": False, "byte_fallback": False},
    }
