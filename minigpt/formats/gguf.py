"""A model as a GGUF file, which llama.cpp and Ollama run, and its weights read back. Needs the package `gguf`."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.data.chat.roles import CONTROL, end_of_turn, has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizers.bpe import MARKED
from minigpt.faults import UserFault
from minigpt.formats.architecture import bias_word, family_of
from minigpt.formats.huggingface import complete_weights, names_of, shapes_of, to_ours, to_theirs
from minigpt.formats.names import other_names
from minigpt.formats.tokenizer_json import GO_TEMPLATE, TEMPLATE, as_text, tokenizer_json
from minigpt.model.gpt import GPT

SPACE = "\u2581"  # a space, in vocabularies of SentencePiece
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3


def refuse_what_llama_cpp_lacks(model: GPT, tokenizer: Tokenizer | None) -> Tokenizer:
    """Refuse a model that llama.cpp can't compute; return the tokenizer, which is needed."""
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
        remedy = "Export it with format=hf, and convert that folder with llama.cpp's convert_hf_to_gguf.py"
        reasons.append(f"llama.cpp needs the name of this tokenizer's pattern, which tokenizer=file lacks. {remedy}")
    elif tokenizer.vocab_size != model.vocab_size:
        reasons.append(f"the model has {model.vocab_size:,} tokens and its tokenizer {tokenizer.vocab_size:,}")
    elif tokenizer.name == "char" and SPACE in tokenizer.decode(range(tokenizer.vocab_size)):
        reasons.append("the alphabet holds U+2581, which llama.cpp takes for a space")
    if reasons or tokenizer is None:
        raise UserFault(f"format=gguf can't express this model: {'; '.join(reasons)}. Nothing was written")
    return tokenizer


def write_gguf(folder: Path, model: GPT, tokenizer: Tokenizer | None, kind: str, name: str) -> Path:
    """Make a folder, write the model and a Modelfile for Ollama into it, and return the path of the GGUF file.

    `kind` is the type of the matrices: f32, f16 or q8_0. Vectors and positions stay f32. `name` is shown to users.
    """
    gguf: Any = importlib.import_module("gguf")
    tokenizer = refuse_what_llama_cpp_lacks(model, tokenizer)
    family, config = family_of(model.config), model.config
    block: Any = model.blocks[0]
    folder.mkdir(parents=True)
    file = folder / f"model-{kind}.gguf"
    writer = gguf.GGUFWriter(file, family)
    writer.add_name(name)
    kinds = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(getattr(gguf.LlamaFileType, kinds[kind]))
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(block.mlp.up.out_features)
    writer.add_context_length(config.block_size)
    if family == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_head_count_kv(block.attention.n_kv_head)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
        for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
            add(block.attention.head_dim)
    _write_vocabulary(writer, tokenizer)
    if has_roles(tokenizer) or tokenizer.template:
        writer.add_chat_template(tokenizer.template.source if tokenizer.template else TEMPLATE)
    for tensor_name, tensor in _tensors(gguf, model, family).items():
        stored = _kind_of(gguf, tensor_name, tensor, kind)
        writer.add_tensor(tensor_name, gguf.quants.quantize(tensor.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "Modelfile").write_text(modelfile(file.name, tokenizer, config.block_size))
    return file


def read_gguf(file: Path, model: GPT) -> dict[str, Tensor]:
    """Return the weights of a file of `write_gguf` under our names, for the model that was written."""
    gguf: Any = importlib.import_module("gguf")
    family, names = family_of(model.config), names_of(model.config)
    wanted = shapes_of(complete_weights(model)[0], model.vocab_size)
    tensor_names = [part for name in wanted for part in other_names(name, names)]
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    attention: Any = model.blocks[0].attention
    tensors = {}
    for name, in_file in gguf_names(gguf, model, family, tensor_names).items():
        tensor = torch.from_numpy(np.array(gguf.quants.dequantize(stored[in_file].data, stored[in_file].tensor_type)))
        tensors[name] = halve(tensor, attention.head_dim) if is_turned(family, name) else tensor
    weights = to_ours(tensors, wanted, names, False, str(file))
    return {name: tensor for name, tensor in weights.items() if name in model.state_dict()}


def gguf_names(gguf: Any, model: GPT, family: str, names: Iterable[str]) -> dict[str, str]:
    """Return the names in a GGUF file of tensors with these names of Hugging Face's."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], len(model.blocks))
    return {name: table.get_name(name, (".weight", ".bias")) for name in names}


def is_turned(family: str, name: str) -> bool:
    """Return whether llama.cpp orders the rows of a tensor by pairs: its Llama turns neighbours, 0 and 1, 2 and 3."""
    return family == "llama" and (".q_proj." in name or ".k_proj." in name)


def modelfile(name: str, tokenizer: Tokenizer, block_size: int) -> str:
    """Return the Modelfile for Ollama, which ignores the template inside the GGUF file `name`."""
    chat = has_roles(tokenizer)
    lines = [f"FROM ./{name}", f'TEMPLATE """{GO_TEMPLATE if chat else "{{ .Prompt }}"}"""']
    lines += [f"PARAMETER num_ctx {block_size}"]
    lines += [f'PARAMETER stop "{control}"' for control in CONTROL if chat]
    return "\n".join([*lines, ""])


def _kind_of(gguf: Any, name: str, tensor: Tensor, kind: str) -> Any:
    kinds = gguf.GGMLQuantizationType
    if tensor.dim() < 2 or name.startswith("position_embd") or kind == "f32":
        return kinds.F32
    return kinds.Q8_0 if kind == "q8_0" and tensor.shape[-1] % 32 == 0 else kinds.F16  # blocks of 32


def _write_vocabulary(writer: Any, tokenizer: Tokenizer) -> None:
    """Write a tokenizer: byte-level BPE with its pattern, or SentencePiece's table for char."""
    described = tokenizer_json(tokenizer)["model"]
    texts = sorted(described["vocab"], key=described["vocab"].__getitem__)
    is_pieces = tokenizer.eot is None and not all(text.isascii() for text in texts)
    if is_pieces:
        texts = [text.replace(" ", SPACE) for text in texts]
        writer.add_add_space_prefix(False)
        writer.add_token_scores([0.0] * len(texts))
    elif tokenizer.eot is None:
        texts = [as_text(text.encode()) for text in texts]
    writer.add_tokenizer_model("llama" if is_pieces else "gpt2")
    writer.add_tokenizer_pre("qwen35" if tokenizer.pattern == MARKED else "gpt-2")
    writer.add_token_list(texts)
    control = set(tokenizer.special.values())
    writer.add_token_types([CONTROL_TOKEN if token in control else NORMAL_TOKEN for token in range(len(texts))])
    writer.add_token_merges([" ".join(merge) for merge in described["merges"]] or [""])  # it must not be empty
    end = tokenizer.eot if tokenizer.eot is not None else tokenizer.vocab_size - 1  # without one llama.cpp takes 11
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(turn if (turn := end_of_turn(tokenizer)) is not None else end)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _tensors(gguf: Any, model: GPT, family: str) -> dict[str, Tensor]:
    attention: Any = model.blocks[0].attention
    D, scaling, weights = attention.head_dim, attention.rope[1], to_theirs(model, conv1d=False)
    tensors = {
        in_file: interleave(weights[name], D).contiguous() if is_turned(family, name) else weights[name]
        for name, in_file in gguf_names(gguf, model, family, weights).items()
    }
    if attention.rotary and scaling is not None:
        frequencies = model.config.rope_theta ** (-2 * torch.arange(D // 2) / D)
        tensors["rope_freqs.weight"] = frequencies / scaling.slowed(frequencies)  # divide each pair's frequency
    return tensors


def interleave(rows: Tensor, D: int) -> Tensor:
    """Return the rows of each head as 0, D/2, 1, D/2 + 1 ..."""
    return rows.unflatten(0, (-1, 2, D // 2)).transpose(1, 2).flatten(0, 2)


def halve(rows: Tensor, D: int) -> Tensor:
    """Undo `interleave`."""
    return rows.unflatten(0, (-1, D // 2, 2)).transpose(1, 2).flatten(0, 2)
