"""A training on a GPU that is not there: the real program on fake tensors, and a count of every wait for the device.

    .venv-gpu/python tests/gpu/rehearsal.py key=value ...

runs minigpt.train under FakeTensorMode: each operator checks shapes, dtypes and devices as on the card, and nothing is
computed. A checkpoint's tensors are stand-ins. The last line is JSON: the exit code, and the waits by kind and place.
"""

import collections
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NUMBER = 3.0  # what a fake device answers when the host asks for a number
TO_HOST, TO_DEVICE = "a blocking copy to the host", "a blocking copy to the device"


@dataclass
class Waits:
    """Waits of the host for the device: (kind, file:line in minigpt) -> how often."""

    places: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    operators: collections.Counter[str] = field(default_factory=collections.Counter)

    def note(self, kind: str) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/minigpt/" in frame.filename]
        place = f"{frames[-1].filename.split('/minigpt/')[-1]}:{frames[-1].lineno}" if frames else "outside of minigpt"
        self.places[kind, place] += 1

    @property
    def total(self) -> int:
        return sum(self.places.values())


class Watch(TorchDispatchMode):
    """Counts operators and waits, and answers what a fake tensor can't."""

    def __init__(self, waits: Waits):
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(function)
        if name == "aten._pin_memory.default":
            return args[0].clone()
        if not any(isinstance(value, FakeTensor) for value in tree_leaves((args, kwargs))):
            device = kwargs.get("device")
            if device is None or torch.device(device).type != "cuda":
                with unset_fake_temporarily():  # what the host computes is real
                    return function(*args, **kwargs)
        self.waits.operators[name] += 1
        if name == "aten.is_pinned.default":
            return True
        if name == "aten.nonzero.default" and args[0].device.type == "cuda":
            self.waits.note("nonzero")
            return torch.zeros(5, args[0].dim(), dtype=torch.long, device=args[0].device)
        if name == "aten._local_scalar_dense.default" and isinstance(args[0], FakeTensor):
            if args[0].device.type == "cuda":
                self.waits.note("a number read")
            dtype = args[0].dtype
            return NUMBER if dtype.is_floating_point else dtype == torch.bool or int(NUMBER)
        self._note_copies(name, args, kwargs)
        return function(*args, **kwargs)

    def _note_copies(self, name: str, args: Any, kwargs: Any) -> None:
        if name == "aten._to_copy.default":
            source, target = args[0].device.type, torch.device(kwargs.get("device") or args[0].device).type
            blocking = not kwargs.get("non_blocking")
        elif name == "aten.copy_.default":
            source, target = args[1].device.type, args[0].device.type
            blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        else:
            return
        if blocking and source != target:
            self.waits.note(TO_HOST if source == "cuda" else TO_DEVICE)


def apply_to_fake(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """nn.Module._apply for fake tensors, whose data can't be swapped; what is there already stays the same."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            changed = change(parameter.detach())
            if changed.device == parameter.device and changed.dtype == parameter.dtype:
                continue
            if id(parameter) not in moved:
                moved[id(parameter)] = nn.Parameter(changed, requires_grad=parameter.requires_grad)
            part._parameters[name] = moved[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = change(buffer)
    return module


def list_of(tensor: FakeTensor) -> Any:
    """Tensor.tolist for fake tensors, which would answer outside of Watch."""

    def nested(sizes: Sequence[int]) -> Any:
        value = NUMBER if tensor.dtype.is_floating_point else int(NUMBER)
        return [nested(sizes[1:]) for _ in range(sizes[0])] if sizes else value

    return nested(tensor.shape)


@contextlib.contextmanager
def fake_device() -> Iterator[Waits]:
    """Let tensors be fake in a `with` block."""
    waits = Waits()
    with (
        mock.patch.object(nn.Module, "_apply", apply_to_fake),
        mock.patch.object(FakeTensor, "tolist", list_of),
        FakeTensorMode(allow_non_fake_inputs=True),
        Watch(waits),
    ):
        yield waits


def rehearse(words: list[str]) -> dict[str, Any]:
    """Train with these settings, on a fake device from the model on."""
    import minigpt
    from minigpt.checkpoint import contents
    from minigpt.training import run

    seen: list[Waits] = []

    def train_from(*arguments: Any) -> int:
        with fake_device() as waits:
            seen.append(waits)
            return real_train_from(*arguments)

    real_train_from = run.train_from
    with (
        mock.patch.object(run, "train_from", train_from),
        mock.patch.object(contents, "pack_tensors", return_value=b"no bytes of a fake tensor"),
        mock.patch.object(contents, "first_non_finite", return_value=None),
    ):
        code = minigpt.train(minigpt.compose(words)).code
    waits = [[kind, place, count] for each in seen for (kind, place), count in sorted(each.places.items())]
    return {"code": code, "operators": sum(sum(each.operators.values()) for each in seen), "waits": waits}


if __name__ == "__main__":
    print(json.dumps(rehearse(sys.argv[1:])))
