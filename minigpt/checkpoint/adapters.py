"""Adapters in the layout of peft, Hugging Face's library: adapter_config.json and adapter_model.safetensors.

The tensors are named as in a Hugging Face folder of the model, so peft can load them into a model from
`minigpt export format=hf`. The label of the tensors' file holds the hashes of the model and of the tokenizer with
which they were trained.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.checkpoint import contents
from minigpt.config.convert import shown
from minigpt.faults import UserFault
from minigpt.files import read_json
from minigpt.formats.names import GPT2_NAMES, LLAMA_NAMES, other_names
from minigpt.model.gpt import GPT
from minigpt.model.lora import Adapter, Place, adapter_of, base_of, places

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX, BASE, WORDS = "base_model.model.", "base_sha256", "tokenizer_sha256"
_GATE = {"mlp.gate": "mlp.c_gate"}  # which GPT-2 lacks
# Fields that change no result here; any other must be empty. (The tensors' names repeat the content of `layers_...`
# and `target_...`.)
_NAMES = """
    peft_type task_type base_model_name_or_path revision peft_version auto_mapping inference_mode r lora_alpha
    lora_dropout fan_in_fan_out target_modules exclude_modules layers_to_transform layers_pattern init_lora_weights
    use_rslora megatron_core qalora_group_size ensure_weight_tying
"""
_HARMLESS = frozenset(_NAMES.split())
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")  # other starts change the model's own weights


def base_hash(gpt: GPT) -> str:
    """Return the SHA-256 of a model's blocks, the same for a run and for an export of it.

    It is computed in fp32, without an adapter. Biases of zero are left out, since an export adds some; so are the
    embeddings and the output layer, whose rows differ with control tokens, block_size and padding.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(base_of(gpt).items()):
        numbers = tensor.detach().float().cpu().contiguous()
        if name.startswith("blocks.") and bool(numbers.any()):
            digest.update(f"{name} {tuple(numbers.shape)} ".encode())
            digest.update(numbers.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensors_of(gpt: GPT) -> dict[str, dict[str, Tensor]]:
    """Return the tensors that a checkpoint holds of a model, by file: its weights, and separately its adapter."""
    adapter, files = adapter_of(gpt), {contents.MODEL: base_of(gpt)}
    if adapter is not None:
        files[ADAPTER] = {
            f"{peft_name(gpt, place)}.lora_{letter}.weight": tensor
            for place, pair in adapter.pairs.items()
            for letter, tensor in zip("AB", pair, strict=True)
        }
    return files


def peft_name(gpt: GPT, place: Place) -> str:
    names = GPT2_NAMES | _GATE if gpt.config.attention == "softmax" else LLAMA_NAMES
    return PREFIX + other_names(f"{place.layer}.weight", names)[place.part].removesuffix(".weight")


def config_json(gpt: GPT) -> dict[str, Any]:
    """Return the adapter_config.json of the adapter that a model has on."""
    adapter = adapter_of(gpt)
    assert adapter is not None
    modules = {re.sub(r".*\.\d+\.", "", peft_name(gpt, place)) for place in adapter.pairs}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,  # peft would look for a local path on the hub
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
        "fan_in_fan_out": gpt.config.attention == "softmax",  # GPT-2's matrices are transposed there
        "inference_mode": True,
    }


def read_adapter(find: Callable[[str], Path], gpt: GPT, origin: str) -> Adapter:
    """Read an adapter for `gpt`; `find` returns the path of a file, `origin` names the folder in errors."""
    rank, alpha = _read_config(find(ADAPTER_CONFIG))
    file = find(ADAPTER)
    tensors, label = contents.read_tensors(file), contents.read_label(file)
    if (broken := contents.first_non_finite(tensors)) is not None:
        raise UserFault(f"{origin} holds numbers that are not finite ({shown(broken)}). Use an earlier checkpoint")
    pairs: dict[Place, tuple[Tensor, Tensor]] = {}
    for place in places(gpt):
        name, columns = peft_name(gpt, place), gpt.get_submodule(place.layer).in_features
        pair = [tensors.pop(key) for letter in "AB" if (key := f"{name}.lora_{letter}.weight") in tensors]
        shapes, wanted = [tuple(tensor.shape) for tensor in pair], [(rank, columns), (place.rows, rank)]
        if pair and shapes != wanted:
            raise UserFault(f"{origin}: {name} has matrices of {shapes}; the model needs {wanted}")
        if pair:
            pairs[place] = (pair[0], pair[1])
    if tensors or not pairs:
        strange = shown(min(tensors)) if tensors else "nothing"
        raise UserFault(f"the adapter {origin} holds {strange}. Put it on the model that it was trained on")
    return Adapter(rank, alpha, pairs, label.get(BASE, ""), label.get(WORDS, ""))


def _read_config(path: Path) -> tuple[int, float]:
    """Return the rank and the effective alpha."""
    config: Any = read_json(path)
    config = config if isinstance(config, dict) else {}
    kind, rank, alpha = map(config.get, ("peft_type", "r", "lora_alpha"))
    if kind != "LORA" or type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not 0 < alpha < 1e9:
        got = f"peft_type={shown(kind)} r={shown(rank)} lora_alpha={shown(alpha)}"
        raise UserFault(f"{path}: got {got}; wanted LORA with numbers above 0")
    if config.get("bias") == "none":
        del config["bias"]
    wrong = [key for key in sorted(config) if key not in _HARMLESS and config[key]]
    wrong += ["init_lora_weights"] if config.get("init_lora_weights", True) not in _PLAIN_STARTS else []
    if wrong:
        raise UserFault(f"{path}: {shown(wrong[0])[1:-1]}={shown(config[wrong[0]])} is not known here")
    return rank, alpha * rank**0.5 if config.get("use_rslora") else alpha
