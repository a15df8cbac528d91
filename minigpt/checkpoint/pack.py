"""The contents of a checkpoint's files: tensors as safetensors, the rest as JSON, no pickle."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from minigpt.config.convert import shown
from minigpt.faults import UserFault

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
STATE, CONFIG, TOKENIZER = "state.json", "config.json", "tokenizer.json"
CALLBACKS, CALLBACK_TENSORS = "callbacks.json", "callbacks.safetensors"  # only where a user's own callbacks have state
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def to_json(value: Any) -> bytes:
    """Return canonical JSON: equal values give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True).encode()


def copy_tensors(tensors: Mapping[str, Tensor], memory: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors into main memory, where they stay as they are while training goes on.

    Args:
        tensors: on any device.
        memory: where the copies go; filled at the first call, written over at later ones with the same shapes.

    Returns:
        The copies, contiguous.
    """
    for name, tensor in tensors.items():
        if name not in memory:
            memory[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
        memory[name].copy_(tensor.detach())
    return {name: memory[name] for name in tensors}


def pack_tensors(tensors: Mapping[str, Tensor], label: Mapping[str, str] | None = None) -> list[memoryview]:
    """Return the parts of a safetensors file, in order, without copying the tensors (contiguous, on the CPU).

    The metadata in its header holds `label`.

    Source: https://huggingface.co/docs/safetensors (Format): length of the header as 8 bytes, JSON header, data.
    """
    header: dict[str, Any] = {"__metadata__": dict(label)} if label else {}
    parts: list[memoryview] = []
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):  # large first: all aligned
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(len(text).to_bytes(8, "little") + text), *parts]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's running averages, named `<parameter index>.<average>`.

    Its hyperparameters follow from the config and the step, so they are not stored.
    """
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value) for index, values in state.items() for name, value in values.items()
    }


def unpack_tensors(content: bytes, origin: str, *, floats_only: bool = True) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a safetensors file. Nothing in the file is run.

    Raises:
        UserFault: it is no safetensors file, or holds other than floating-point numbers although floats_only.
    """
    try:
        tensors = load_tensors(content)
    except Exception as error:  # SafetensorError for most, KeyError for new types, RuntimeError for absurd shapes
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise UserFault(
            f"{origin} is no usable safetensors file ({reason}){looks_like(content)}. Use another checkpoint"
        ) from None
    for name, tensor in tensors.items():
        if floats_only and tensor.dtype not in _FLOATS:
            raise UserFault(f"{origin} holds {shown(name)} as {tensor.dtype}; wanted floating-point numbers")
    return tensors


def looks_like(content: bytes) -> str:
    """Return a clause for an error sentence if a file's bytes look like a pickle, else ""."""
    binary, text = content[:1] == b"\x80", content[:1] in (b"c", b"(") and content.rstrip().endswith(b".")
    if binary or text or content[:2] == b"PK":
        return "; it looks like a pickle, as torch.save writes, which could run any code: it is not read"
    return ""


def unpack_optimizer(data: bytes, optimizer: torch.optim.Optimizer) -> None:
    """Put running averages back into an optimizer over the same parameters, keeping its hyperparameters.

    Raises:
        UserFault: they are not those of this optimizer over these parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    tensors = unpack_tensors(data, OPTIMIZER)
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        number = int(index) if index.isascii() and index.isdigit() and len(index) < 9 else len(parameters)
        if number >= len(parameters) or tuple(value.shape) not in ((), tuple(parameters[number].shape)):
            raise UserFault(misfit(shown(key)))
        state.setdefault(number, {})[name] = value
    wanted = [averages(optimizer, parameter) for parameter in parameters]
    if state and (len(state) != len(parameters) or any(set(state[i]) != names for i, names in enumerate(wanted))):
        raise UserFault(misfit(f"{len(tensors)} averages of {len(state)} parameters"))
    broken = first_non_finite(tensors)
    if broken is not None:
        raise UserFault(f"{OPTIMIZER} holds a non-finite average ({broken}). Use an earlier checkpoint")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def averages(optimizer: torch.optim.Optimizer, parameter: Tensor) -> set[str]:
    """Return the names of the averages that AdamW or Muon keeps for a parameter."""
    return {"momentum"} if parameter in getattr(optimizer, "matrices", ()) else {"step", "exp_avg", "exp_avg_sq"}


def misfit(got: str) -> str:
    return f"{OPTIMIZER} does not belong to this model and optimizer: it holds {got}. Use another checkpoint"


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds a NaN or infinity, or None, in one fused pass."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if not floats:
        return None
    largest = torch._foreach_norm(list(floats.values()), float("inf"))
    for name, value in zip(floats, largest, strict=True):
        if not bool(torch.isfinite(value)):
            return name
    return None
