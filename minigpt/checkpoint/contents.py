"""The contents of a checkpoint's files: tensors as safetensors, the rest as JSON, no pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from minigpt.config.convert import shown
from minigpt.faults import UserFault
from minigpt.model.parts import held_rows, local

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
STATE, CONFIG, TOKENIZER = "state.json", "config.json", "tokenizer.json"
CALLBACKS = "callbacks.json"  # only where a user's own callbacks have state
LABEL = "minigpt"  # the only key of the metadata: safetensors writes several keys in any order


def to_json(value: Any) -> bytes:
    """Return canonical JSON: equal values give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True).encode()


def copy_tensors(tensors: Mapping[str, Tensor], memory: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Copy tensors into main memory, where they stay as they are while training goes on.

    A sharded tensor is gathered from all processes, which must all call this, one tensor at a time. The copies are kept
    in `memory`, which later calls overwrite; None: this process only sends its shards. Copies from a GPU are
    complete when its current stream is.
    """
    for name, tensor in tensors.items():
        whole: Any = tensor.detach()
        if hasattr(whole, "full_tensor"):
            whole = whole.full_tensor()
        if memory is not None:
            if name not in memory:  # page-locked, so that a GPU copies all tensors without the host waiting for each
                memory[name] = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=whole.is_cuda)
            memory[name].copy_(whole, non_blocking=True)
    return {} if memory is None else {name: memory[name] for name in tensors}


def pack_tensors(tensors: Mapping[str, Tensor], label: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file: equal tensors and labels give equal bytes."""
    return save(dict(tensors), {LABEL: json.dumps(label, sort_keys=True)} if label else None)


def read_label(path: Path) -> dict[str, str]:
    """Return the label of a safetensors file; {} if it has none."""
    with safe_open(path, "pt") as file:
        label = json.loads((file.metadata() or {}).get(LABEL, "{}"))
    return {str(key): str(value) for key, value in label.items()} if isinstance(label, dict) else {}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, read as they are used. Nothing in the file is run."""
    try:
        return load_file(path)
    except Exception as error:  # SafetensorError for most, KeyError for new types, RuntimeError for absurd shapes
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        remedy = "A pickle, as torch.save writes, could run any code and is not read. Use another checkpoint"
        raise UserFault(f"{path} is no usable safetensors file ({reason}). {remedy}") from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's running averages, named `<parameter index>.<average>`.

    Its hyperparameters follow from the config and the step, so they are not stored.
    """
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": average for index, averages in state.items() for name, average in averages.items()}


def restore_optimizer(tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Put running averages back into an optimizer over the same parameters, keeping its hyperparameters.

    Over sharded parameters each process takes its rows.
    """
    if not tensors:
        return
    _make_averages(optimizer)
    averages = optimizer_tensors(optimizer)
    if difference := first_difference(averages, tensors):
        raise UserFault(f"{OPTIMIZER} is not of this model and optimizer: {difference}. Use another checkpoint")
    rows = {name: tensors[name][held_rows(own)] if own.dim() else tensors[name] for name, own in averages.items()}
    if (broken := first_non_finite(rows)) is not None:
        raise UserFault(f"{OPTIMIZER} holds a non-finite average ({broken}). Use an earlier checkpoint")
    for name, own in averages.items():
        local(own).copy_(rows[name])


def _make_averages(optimizer: torch.optim.Optimizer) -> None:
    """Make a step of length 0, in which an optimizer creates and names its averages."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def first_difference(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """Return in words which tensor is missing, needless or of another shape than expected; "" if none is."""
    wanted, shapes = ({name: tuple(tensor.shape) for name, tensor in named.items()} for named in (expected, tensors))
    differing = sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name))
    if not differing:
        return ""
    got, want = shapes.get(differing[0], "missing"), wanted.get(differing[0], "no such tensor")
    return f"{shown(differing[0])} has shape {got}; wanted {want} ({len(differing)} differ)"


def first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds a NaN or infinity, or None, in one fused pass."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if not floats:
        return None
    largest = torch._foreach_norm(list(floats.values()), float("inf"))
    return next((name for name, value in zip(floats, largest, strict=True) if not value.isfinite()), None)
