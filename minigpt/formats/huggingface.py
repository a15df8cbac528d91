"""Models as Hugging Face folders (GPT-2, Llama, Qwen2, Qwen3), in and out. nanoGPT's ckpt.pt is read, too (nanogpt.py).

Nothing in them is run: config.json and safetensors are data, and folders with pickles are refused.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from minigpt.config.convert import shown
from minigpt.config.schema import ModelConfig
from minigpt.data.chat.roles import end_of_turn
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.formats import nanogpt
from minigpt.formats.architecture import config_json, family_of, read_imported_config
from minigpt.formats.names import GPT2_NAMES, LLAMA_NAMES, TRANSPOSED, other_names
from minigpt.formats.tokenizer_json import read_tokenizer, tokenizer_config, tokenizer_json
from minigpt.model.gpt import GPT, empty_gpt

VOCABULARY = ("token_embedding.weight", "output.weight")  # whose rows a model of ours pads to a multiple of 64
_NO_WEIGHT = re.compile(r".*\.(attn\.bias|attn\.masked_bias|rotary_emb\.inv_freq)")  # buffers of older versions

Shapes = Mapping[str, tuple[int, ...]]  # of weights, by our names

# --- in ---


def read_imported_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of another program's model under our names; no rows pad their vocabulary."""
    config, vocab_size = read_imported_config(path)
    tensors = nanogpt.read_tensors(path) if path.is_file() else _read_folder(path)
    names = names_of(config.model)
    conv1d = names is GPT2_NAMES and path.is_dir()
    return to_ours(tensors, shapes_of(config.model, vocab_size), names, conv1d, str(path))


def names_of(config: ModelConfig) -> dict[str, str]:
    """Return Hugging Face's names for the tensors of a model, by ours."""
    return GPT2_NAMES if config.attention == "softmax" else LLAMA_NAMES


def shapes_of(config: ModelConfig, vocab_size: int) -> Shapes:
    """Return the names and shapes of a model's weights, without the rows that pad its vocabulary."""
    state = empty_gpt(config, vocab_size, device="meta").state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return {name: (vocab_size, *shape[1:]) if name in VOCABULARY else shape for name, shape in shapes.items()}


def to_ours(
    tensors: dict[str, Tensor], wanted: Shapes, names: Mapping[str, str], conv1d: bool, origin: str
) -> dict[str, Tensor]:
    """Return another program's tensors under our names, in the shapes wanted.

    `names` are the other program's, by ours (names.py); with `conv1d` GPT-2's matrices are transposed.
    """
    ours: dict[str, Tensor] = {}
    unread = {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHT.fullmatch("." + name)}
    for name, shape in wanted.items():
        parts = other_names(name, names)
        if missing := [part for part in parts if part not in unread]:
            raise UserFault(f"{origin} has no {missing[0]}, which its config.json says it needs")
        stacked = [unread.pop(part) for part in parts]
        if any(tensor.shape[1:] != stacked[0].shape[1:] or not tensor.dim() for tensor in stacked):
            raise UserFault(f"{origin}: {parts[0]} is no vector or matrix like its neighbours")
        whole = torch.cat(stacked) if len(stacked) > 1 else stacked[0]
        ours[name] = whole.T.contiguous() if conv1d and name.endswith(TRANSPOSED) and whole.dim() == 2 else whole
        if ours[name].shape != shape:
            got = f"{' + '.join(parts)} is {tuple(ours[name].shape)}"
            raise UserFault(f"{origin}: {got}, and by its config.json it must be {shape}")
    tied = unread.pop(names["output"] + ".weight", None)  # a copy of the embedding, in files that keep both
    if tied is not None and not torch.equal(tied, ours["token_embedding.weight"]):
        raise UserFault(f"{origin}: its config.json ties lm_head.weight to the embedding, and the two differ")
    if unread:
        strange = shown(min(unread))
        raise UserFault(f"{origin} holds {strange}, which is no part of the model that its config.json names")
    return ours


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of model.safetensors, or of the files that its index names."""
    index, files = folder / "model.safetensors.index.json", ["model.safetensors"]
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
    tensors = {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHT.fullmatch("." + name)}
    if strange := [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        raise UserFault(f"{folder} holds {min(strange)} as {tensors[min(strange)].dtype}; wanted fp32, bf16 or fp16")
    bare = "wte.weight" in tensors  # GPT2Model without its head, as the first GPT-2 files have it
    return {f"transformer.{name}" if bare and name != "lm_head.weight" else name: tensors[name] for name in tensors}


class NoTokenizer:
    """Takes the place of a tokenizer where an imported model has none that we can use. Any use raises the `reason`."""

    def __init__(self, reason: str, is_there: bool):
        self.reason, self.is_there = reason, is_there

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UserFault(self.reason)


def imported_tokenizer(path: Path) -> Tokenizer | NoTokenizer:
    """Return the tokenizer of an imported model: of its tokenizer.json, or of the meta.pkl beside a ckpt.pt."""
    vocab_size = read_imported_config(path)[1]
    file = path.with_name("meta.pkl") if path.is_file() else path / "tokenizer.json"
    try:
        tokenizer = nanogpt.read_tokenizer(path, vocab_size) if path.is_file() else read_tokenizer(file)
    except UserFault as fault:
        return NoTokenizer(str(fault), file.is_file())
    if tokenizer.vocab_size > vocab_size:
        wrong = f"its tokenizer has {tokenizer.vocab_size:,} tokens and its model a vocab_size of {vocab_size:,}"
        remedy = "Put the model's own tokenizer there, or remove this one"
        raise UserFault(f"{path}: {wrong}: they don't belong together. {remedy}")
    return tokenizer


# --- out ---


def write_huggingface(folder: Path, model: GPT, tokenizer: Tokenizer | None) -> None:
    """Make a folder and write config.json, the weights in fp32 and the tokenizer into it."""
    end = tokenizer.eot if tokenizer else None
    turn = tokenizer and end_of_turn(tokenizer)
    others = sorted(tokenizer.template.ends) if tokenizer and tokenizer.template else ()
    ends = [*dict.fromkeys([turn, *others, end])]
    begin = tokenizer.start[0] if tokenizer and tokenizer.start else end
    ids = {"bos_token_id": begin, "eos_token_id": ends if len(ends) > 1 else end, "pad_token_id": end}
    files: dict[str, Any] = {
        "config.json": config_json(model) | ids | {"dtype": "float32", "use_cache": True},
        "generation_config.json": ids,
    }
    if tokenizer:
        files["tokenizer.json"] = tokenizer_json(tokenizer)
        files["tokenizer_config.json"] = tokenizer_config(tokenizer, model.config.block_size)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    tensors = to_theirs(model, conv1d=names_of(model.config) is GPT2_NAMES)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)  # safetensors makes it private


def to_theirs(model: GPT, *, conv1d: bool) -> dict[str, Tensor]:
    """Return a model's weights in fp32 under Hugging Face's names; with `conv1d` GPT-2's matrices are transposed."""
    attention: Any = model.blocks[0].attention
    stacked = [attention.n_head * attention.head_dim] + 2 * [attention.n_kv_head * attention.head_dim]
    tensors: dict[str, Tensor] = {}
    for name, tensor in complete_weights(model)[1].items():
        parts = other_names(name, names_of(model.config))
        tensor = tensor.T if conv1d and name.endswith(TRANSPOSED) else tensor
        rows = stacked if len(parts) == 3 else [len(tensor)]  # queries, keys and values
        tensors |= {part: piece.contiguous() for part, piece in zip(parts, tensor.split(rows), strict=True)}
    return tensors


def complete_weights(model: GPT) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return a model's weights in fp32 on the CPU, with biases of zero where only the architecture has biases.

    The rows that pad the vocabulary are left out.
    """
    config = model.config
    bias = "all" if family_of(config) == "gpt2" else "attention" if config.bias == "qkv" else config.bias
    config, state = replace(config, bias=bias), model.state_dict()
    shapes = shapes_of(config, model.vocab_size)
    weights = {name: state.get(name, torch.zeros(shape)) for name, shape in shapes.items()}
    return config, {name: tensor[: shapes[name][0]].detach().float().cpu() for name, tensor in weights.items()}
