"""Models that other programs made: Hugging Face folders of GPT-2, Llama, Qwen2 and Qwen3, and nanoGPT's ckpt.pt.

Nothing in them is run: config.json and safetensors are data, nanoGPT's pickles are read without an unpickler, and
folders with other pickles are refused. A Hugging Face cache keeps its files as links, which are followed.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from minigpt.config.check import find_faults
from minigpt.config.convert import read, shown
from minigpt.config.foreign import (
    MAX_PICKLE,
    MAX_TOKENIZER,
    ZIP_FAULTS,
    foreign_settings,
    kind_of_tokenizer,
    read_nanogpt,
)
from minigpt.config.plain_pickle import read_pickle
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.tokenizer import Tokenizer, build_tokenizer, read_tokenizer_json
from minigpt.faults import UserFault
from minigpt.files import read_json

# The names of each part of a block and of the model; several names where others keep apart what we stack by rows.
GPT2_NAMES = {
    "block": "transformer.h.{}.",
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "output": "lm_head",
}
LLAMA_NAMES = {
    "block": "model.layers.{}.",
    "token_embedding": "model.embed_tokens",
    "norm_1": "input_layernorm",
    "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.out": "self_attn.o_proj",
    "norm_2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "final_norm": "model.norm",
    "output": "lm_head",
}
TRANSPOSED = ("attention.qkv.weight", "attention.out.weight", "mlp.up.weight", "mlp.down.weight")  # in GPT-2's Conv1D
_NO_WEIGHT = re.compile(r".*\.(attn\.bias|attn\.masked_bias|rotary_emb\.inv_freq)")  # buffers of older versions
_STORAGES = {
    "torch.FloatStorage": torch.float32,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.HalfStorage": torch.float16,
    "torch.DoubleStorage": torch.float64,
}
_REBUILD = "torch._utils._rebuild_tensor_v2"


def is_foreign(path: Path) -> bool:
    """Return whether another program's model is there.

    Raises:
        UserFault: there is one that minigpt can't compute.
    """
    return not (path / "MANIFEST.json").is_file() and foreign_settings(path) is not None


def read_foreign_config(path: Path) -> tuple[TrainConfig, int]:
    """Return the architecture as a config, whose other settings are the defaults, and the size of the vocabulary.

    Raises:
        UserFault: minigpt can't compute this architecture.
    """
    found = foreign_settings(path)
    assert found is not None
    config, wrong = read(TrainConfig, found[0])
    faults = wrong + [fault for fault in find_faults(config) if all(key.startswith("model.") for key in fault.keys)]
    if faults:
        raise UserFault(f"{path} can't be used: {faults[0].sentence}")
    return config, found[1]


def read_foreign_weights(path: Path, config: ModelConfig, shapes: Iterable[str]) -> dict[str, Tensor]:
    """Return the weights under our names, as the files hold them: without the rows that pad a vocabulary.

    Args:
        path: of the model.
        config: its architecture.
        shapes: the names that a model of ours has.

    Raises:
        UserFault: weights are missing, unknown or unusable.
    """
    tensors = _nanogpt_tensors(path) if path.is_file() else _folder_tensors(path)
    conv1d = path.is_dir() and config.attention == "softmax"
    return to_ours(tensors, shapes, GPT2_NAMES if config.attention == "softmax" else LLAMA_NAMES, conv1d, str(path))


def to_ours(
    tensors: dict[str, Tensor], wanted: Iterable[str], names: Mapping[str, str], conv1d: bool, origin: str
) -> dict[str, Tensor]:
    """Return tensors under our names, queries, keys and values stacked; `conv1d`: GPT-2's matrices are transposed.

    Raises:
        UserFault: a tensor is missing, or belongs to no part of the model.
    """
    ours: dict[str, Tensor] = {}
    left = {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHT.fullmatch("." + name)}
    for name in wanted:
        parts = theirs(name, names)
        if missing := [part for part in parts if part not in left]:
            raise UserFault(f"{origin} has no {missing[0]}, which its config.json says it needs")
        stacked = [left.pop(part) for part in parts]
        if len(stacked) == 3 and stacked[1].shape != stacked[2].shape:  # as many keys as values, in every model
            raise UserFault(f"{origin}: {parts[1]} and {parts[2]} are not of the same shape")
        if any(tensor.dim() != stacked[0].dim() or not tensor.dim() for tensor in stacked):
            raise UserFault(f"{origin}: {parts[0]} is no vector or matrix like its neighbours")
        whole = stacked[0] if len(stacked) == 1 else torch.cat(stacked)
        ours[name] = whole.T.contiguous() if conv1d and name.endswith(TRANSPOSED) and whole.dim() == 2 else whole
    tied = left.pop(names["output"] + ".weight", None)  # a copy of the embedding, in files that keep both
    if tied is not None and not torch.equal(tied, ours["token_embedding.weight"]):
        raise UserFault(f"{origin}: its config.json ties lm_head.weight to the embedding, and the two differ")
    if left:
        raise UserFault(f"{origin} holds {shown(min(left))}, which is no part of the model that its config.json names")
    return ours


def theirs(name: str, names: Mapping[str, str]) -> list[str]:
    """Return the names that others give to one of our tensors, or to its stacked parts."""
    found = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+)\.(weight|bias)", re.sub(r"qk_norm\.([qk])_", r"\1_norm.", name))
    assert found is not None
    number, part, kind = found.groups()
    prefix = names["block"].format(number) if number else ""
    return [f"{prefix}{each}.{kind}" for each in names[part].split()]


def _folder_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of model.safetensors, or of the files that its index names."""
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if not (folder / files[0]).is_file() and index.is_file():
        try:
            files = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UserFault(f"{index} names no files of weights") from None
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not isinstance(file, str) or Path(file).name != file or not (folder / file).is_file():
            pickled = any(folder.glob("pytorch_model*.bin"))
            hint = " Its pytorch_model.bin is a pickle, which could run any code: save it as safetensors" * pickled
            raise UserFault(f"{folder} has no file {shown(file)} with the weights.{hint}")
        try:
            tensors |= load_file(folder / file)
        except (SafetensorError, OSError, KeyError, RuntimeError, ValueError) as error:
            raise UserFault(f"{folder / file} is no usable safetensors file: {str(error)[:200]}") from None
    if strange := [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        tensors = {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHT.fullmatch("." + name)}
        if kept := [name for name in strange if name in tensors]:
            raise UserFault(f"{folder} holds {min(kept)} as {tensors[min(kept)].dtype}; wanted fp32, bf16 or fp16")
    bare = "wte.weight" in tensors  # GPT2Model without its head, as the first GPT-2 files have it
    return {f"transformer.{name}" if bare and name != "lm_head.weight" else name: tensors[name] for name in tensors}


def _nanogpt_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights of ckpt.pt, read as plain numbers from the archive, without an unpickler."""
    archive, folder, content = read_nanogpt(path)
    tensors, storages = dict[str, Tensor](), dict[tuple[str, str], Tensor]()
    try:
        for name, call in content["model"].items():
            assert call.name == _REBUILD
            storage, offset, size, stride = call.arguments[:4]
            kind, key = storage.arguments[1:3]
            assert isinstance(key, str)
            if tuple(stride) != torch.empty(size, device="meta").stride():
                raise ValueError(f"{shown(name)} is no plain block of numbers")
            place = (key, kind.name)
            if place not in storages:
                numbers = bytearray(archive.read(f"{folder}data/{key}"))
                storages[place] = torch.frombuffer(numbers, dtype=_STORAGES[kind.name])
            tensors[name.removeprefix("_orig_mod.")] = storages[place].narrow(0, offset, math.prod(size)).view(size)
    except (AssertionError, LookupError, TypeError, AttributeError, *ZIP_FAULTS) as e:
        raise UserFault(f"{path}: its weights can't be read ({type(e).__name__}: {str(e)[:200]})") from None
    return tensors


class NoTokenizer:
    """Takes the place of a tokenizer where a foreign model has none that we can use. Any use raises a UserFault.

    Attributes:
        reason: why there is none.
        is_there: whether the model has one, which can't be used.
    """

    def __init__(self, reason: str, is_there: bool):
        self.reason, self.is_there = reason, is_there

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UserFault(self.reason)


def foreign_tokenizer(path: Path) -> Tokenizer | NoTokenizer:
    """Return the tokenizer of a foreign model: of its tokenizer.json, or of the meta.pkl beside a ckpt.pt.

    Raises:
        UserFault: it has more tokens than the model has.
    """
    file = path.with_name("meta.pkl") if path.is_file() else path / "tokenizer.json"
    try:
        tokenizer = _nanogpt_tokenizer(path, file) if path.is_file() else _folder_tokenizer(file)
    except UserFault as fault:
        return NoTokenizer(str(fault), file.is_file())
    vocab_size = read_foreign_config(path)[1]
    if tokenizer.vocab_size > vocab_size:
        raise UserFault(
            f"{path}: its tokenizer has {tokenizer.vocab_size:,} tokens and its model a vocab_size of {vocab_size:,}: "
            "they don't belong together. Put the model's own tokenizer there, or remove this one"
        )
    return tokenizer


def _folder_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise UserFault(f"{path.parent} has no tokenizer.json, so text can't become tokens. Put the model's own there")
    content = read_json(path, MAX_TOKENIZER)
    name = kind_of_tokenizer(content)[0]
    if name != "char":
        whole = read_tokenizer_json(path)
        tokens = [whole.token_bytes(token) for token in range(whole.vocab_size - 1)]
        return whole if name == "file" else Tokenizer(name, tokens)
    ids = content["model"]["vocab"]
    try:
        return Tokenizer(name, [character.encode() for character in sorted(ids, key=ids.__getitem__)])
    except ValueError as fault:
        raise UserFault(f"{path} can't be used: {fault}") from None


def _nanogpt_tokenizer(path: Path, meta: Path) -> Tokenizer:
    if not meta.is_file() and read_foreign_config(path)[1] in (50257, 50304):  # GPT-2's, and as nanoGPT rounds it up
        return build_tokenizer("gpt2")
    if not meta.is_file():
        raise UserFault(f"{path} has no tokenizer. For one of characters copy nanoGPT's data/.../meta.pkl beside it")
    small = meta.stat().st_size <= MAX_PICKLE
    characters = read_pickle(meta.read_bytes(), str(meta)) if small else None
    itos = characters.get("itos") if isinstance(characters, dict) else None
    if not isinstance(itos, dict) or {*itos} != {*range(len(itos))}:
        raise UserFault(f"{meta} is not nanoGPT's meta.pkl of characters, which holds itos")
    if not all(isinstance(each, str) and len(each) == 1 for each in itos.values()):
        raise UserFault(f"{meta}: a token is not one character")
    try:
        return Tokenizer("char", [itos[token].encode() for token in range(len(itos))])
    except ValueError as fault:  # there twice, or a lone surrogate
        raise UserFault(f"{meta} can't be used: {fault}") from None
