"""The state of a user's own Lightning callbacks in a checkpoint: as JSON and tensors, never as a pickle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from minigpt.checkpoint.load import read_file, read_json
from minigpt.checkpoint.pack import CALLBACK_TENSORS, CALLBACKS, copy_tensors, pack_tensors, to_json, unpack_tensors
from minigpt.training.saving import Files

TENSOR = "__tensor__"  # stands for a tensor in callbacks.json, with its name in callbacks.safetensors


def pack_states(callbacks: Sequence[L.Callback]) -> tuple[Files, list[str]]:
    """Return the files that hold the callbacks' `state_dict()`, and a sentence for each that can't be saved."""
    states: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    problems = []
    for callback in callbacks:
        key, own = callback.state_key, dict[str, Tensor]()
        try:
            state = _plain(callback.state_dict(), key, own)
        except TypeError as reason:
            problems.append(f"the state of the callback {type(callback).__name__} can't be saved ({reason})")
            continue
        if state:
            states[key] = state
            tensors |= own
    files: Files = {CALLBACKS: [to_json(states)]} if states else {}
    if tensors:
        files[CALLBACK_TENSORS] = pack_tensors(copy_tensors(tensors, {}))
    return files, problems


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON holds it; its tensors go to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}; wanted JSON or tensors")


def restore_states(callbacks: Sequence[L.Callback], checkpoint: Path) -> None:
    """Give each callback the state that a checkpoint holds of it.

    Raises:
        UserFault: the checkpoint's files are damaged.
    """
    if not callbacks or not (checkpoint / CALLBACKS).is_file():
        return
    states, tensors = read_json(checkpoint, CALLBACKS), {}
    if (checkpoint / CALLBACK_TENSORS).is_file():
        content = read_file(checkpoint, CALLBACK_TENSORS)
        tensors = unpack_tensors(content, str(checkpoint / CALLBACK_TENSORS), floats_only=False)
    for callback in callbacks:
        if callback.state_key in states:
            callback.load_state_dict(_whole(states[callback.state_key], tensors))


def _whole(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_plain`; tuples have become lists."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: _whole(part, tensors) for key, part in value.items()}
    return [_whole(part, tensors) for part in value] if isinstance(value, list) else value
