"""A training on a GPU that is not there: the real program on fake tensors, and a count of every wait for the device.

    .venv-gpu/python tests/gpu/rehearsal.py [COMMAND] key=value ... -- [COMMAND] key=value ...

runs commands of minigpt, one after the other, under FakeTensorMode: each operator checks shapes, dtypes and devices as
on the card, and nothing is computed. A checkpoint's tensors are stand-ins. The last line is JSON, for each command: its
exit code, its peak of memory, and the waits by kind and place.
"""

import collections
import contextlib
import json
import os
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minigpt.checkpoint.contents import pack_tensors
from minigpt.config.compose import compose
from minigpt.model.loss import _sum_and_gradients as chunked_loss
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.generate import TextInProgress

ROOT = Path(__file__).parents[2]
NUMBER = 3.0  # what a fake device answers when the host asks for a number
LARGEST_FILE = 1 << 26  # bytes; of larger models a checkpoint holds no weights
A_NUMBER, FOR_AN_EVENT, FOR_ALL = "a number read", "a wait for an event", "a wait for all that was queued"
TO_HOST, TO_DEVICE = "a blocking copy to the host", "a blocking copy to the device"


@dataclass
class Waits:
    """Waits of the host for the device: (kind, file:line in minigpt) -> how often."""

    places: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    operators: collections.Counter[str] = field(default_factory=collections.Counter)

    def note(self, kind: str, *_: object) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/minigpt/" in frame.filename]
        place = f"{frames[-1].filename.split('/minigpt/')[-1]}:{frames[-1].name}" if frames else "outside of minigpt"
        self.places[kind, place] += 1

    @property
    def total(self) -> int:
        return sum(self.places.values())


class Memory:
    """Bytes of the storages that live on the device, each in blocks of 512 bytes as its allocator hands them out."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.now = self.most = 0

    def see(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that is new or has another size, until it is freed."""
        key = storage._cdata
        if key not in self.sizes:
            weakref.finalize(storage, lambda: self.resize(key, 0))
        self.resize(key, -(-storage.nbytes() // 512) * 512)

    def resize(self, key: int, size: int) -> None:
        """Note that a storage now has this size."""
        self.now += size - self.sizes.pop(key, 0)
        if size:
            self.sizes[key] = size
        self.most = max(self.most, self.now)


class Watch(TorchDispatchMode):
    """Counts operators, waits and memory, and answers what a fake tensor can't."""

    def __init__(self, waits: Waits, memory: Memory):
        super().__init__()
        self.waits, self.memory = waits, memory

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._answer(function, args, kwargs or {})
        for value in tree_leaves(result):
            if isinstance(value, FakeTensor) and value.device.type == "cuda":
                self.memory.see(value.untyped_storage())
        return result

    def _answer(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = str(function)
        if name == "aten._pin_memory.default":
            return args[0].clone()
        if not any(isinstance(value, FakeTensor) for value in tree_leaves((args, kwargs))):
            device = kwargs.get("device")
            if device is None or torch.device(device).type != "cuda":
                with unset_fake_temporarily():  # what the host computes is real
                    return function(*args, **kwargs)
        self.waits.operators[name] += 1
        if name == "minigpt.chunked_loss.default":  # step by step, for its memory
            with self:
                return chunked_loss._init_fn(*args, **kwargs)
        if name == "aten.is_pinned.default":
            return True
        if name == "aten.nonzero.default" and args[0].device.type == "cuda":
            self.waits.note("nonzero")
            return torch.zeros(5, args[0].dim(), dtype=torch.long, device=args[0].device)
        if name == "aten._local_scalar_dense.default" and isinstance(args[0], FakeTensor):
            if args[0].device.type == "cuda":
                self.waits.note(A_NUMBER)
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
def fake_device() -> Iterator[tuple[Waits, Memory]]:
    """Let tensors be fake in a `with` block."""
    waits, memory, resize = Waits(), Memory(), torch.UntypedStorage.resize_

    def resize_storage(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = resize(storage, size)  # how sharded weights are freed and gathered anew
        if storage._cdata in memory.sizes or size:
            memory.see(storage)
        return result

    def read(tensor: FakeTensor) -> Any:
        if tensor.is_cuda:
            waits.note(A_NUMBER)
        return list_of(tensor)

    with (
        mock.patch.object(torch.UntypedStorage, "resize_", resize_storage),
        mock.patch.object(nn.Module, "_apply", apply_to_fake),
        mock.patch.object(FakeTensor, "tolist", read),
        mock.patch.object(FakeTensor, "numpy", lambda tensor: np.full(tensor.shape, NUMBER)),
        mock.patch.object(torch.cuda.Event, "synchronize", partial(waits.note, FOR_AN_EVENT)),
        mock.patch.object(torch.cuda.Stream, "synchronize", partial(waits.note, FOR_ALL)),
        mock.patch.object(torch.cuda, "synchronize", partial(waits.note, FOR_ALL)),
        FakeTensorMode(allow_non_fake_inputs=True),
        Watch(waits, memory),
    ):
        yield waits, memory


def stand_in(tensors: Mapping[str, Tensor], label: Mapping[str, str] | None = None) -> bytes:
    """A checkpoint's file of fake tensors: zeros, or a few bytes in place of a large model's."""
    if sum(tensor.nbytes for tensor in tensors.values()) > LARGEST_FILE:
        return b"no bytes of a fake tensor"
    with unset_fake_temporarily():
        return pack_tensors({name: torch.zeros(fake.shape, dtype=fake.dtype) for name, fake in tensors.items()}, label)


@contextlib.contextmanager
def seen_by_rank_zero(world_size: int) -> Iterator[None]:
    """Be rank 0 of a group whose other ranks are not there: each collective returns at once (torch's fake group)."""
    from minigpt.ranks import group

    if world_size == 1:
        yield
        return
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    init, new_group, init_ddp = dist.init_process_group, dist.new_group, DistributedDataParallel.__init__

    def init_fake(*_: Any, **options: Any) -> None:
        init("fake", store=FakeStore(), rank=0, world_size=world_size)

    def new_fake(*ranks: Any, **options: Any) -> Any:
        return new_group(*ranks, **options | {"backend": "fake"})

    def reduced(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())  # the fake group's own answer is None, which DDP refuses
        return future

    def with_hook(ddp: DistributedDataParallel, *given: Any, **options: Any) -> None:
        init_ddp(ddp, *given, **options)
        ddp.register_comm_hook(None, reduced)

    def end(error: BaseException, processes: group.Processes) -> None:
        dist.destroy_process_group()
        raise error

    with (
        mock.patch.dict(os.environ, {name: str(value) for name, value in place.items()}),
        mock.patch.object(group, "_meet", return_value=dist.HashStore()),
        mock.patch.object(dist, "init_process_group", init_fake),
        mock.patch.object(dist, "new_group", new_fake),
        mock.patch.object(dist, "broadcast_object_list"),  # rank 0 has them
        mock.patch.object(dist, "_verify_params_across_processes"),
        mock.patch.object(DistributedDataParallel, "__init__", with_hook),
        mock.patch.object(group, "_end", end),
        mock.patch.object(group.Processes, "gather", lambda self, text: [text] * self.world_size),
    ):
        yield


def in_a_process(script: str, *arguments: str, **variables: str) -> Any:
    """Return what a script of this folder prints in its last line, as JSON."""
    command = [sys.executable, Path(__file__).with_name(script), *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def two_texts(words: Sequence[str]) -> None:
    """Let the model that `serve` would load write two texts of one answer: all but HTTP."""
    from minigpt.serving.engine import Answer, Choice, load_models

    (served,) = load_models(compose("serve", words[1:]))
    texts = [TextInProgress(list(range(size)), SamplingOptions(max_new_tokens=4)) for size in (3, 5)]
    answer = Answer(served.name, texts, top=2)
    served.waiting = [Choice(answer, 0), Choice(answer, 1)]
    while served.waiting or served.writing:
        served.step(served.admit())
    assert [len(text.written) for text in texts] == [4, 4]


def rehearse(words: Sequence[str]) -> dict[str, Any]:
    """Run a command of minigpt, `train` if none is named, on a fake device; a training is fake from the model on.

    A word numbers=a,b,c,d,e is the loss, gradient norm, weight, scale and reward that each step then answers with.
    """
    from minigpt import cli, stages
    from minigpt.checkpoint import contents
    from minigpt.training import finish, run, saving

    numbers = [list(map(float, word[8:].split(","))) for word in words if word.startswith("numbers=")]
    words = [word for word in words if not word.startswith("numbers=")]
    seen: list[tuple[Waits, Memory]] = []
    real_train_from, real_list = run.train_from, list_of

    def on_device(call: Callable[..., Any]) -> Callable[..., Any]:
        def fake(*arguments: Any) -> Any:
            with fake_device() as watched:
                seen.append(watched)
                return call(*arguments)

        return fake

    def answers(tensor: FakeTensor) -> Any:
        if tensor.shape == (10,):  # of several ranks: the numbers of one, seconds, and four requests to stop
            return [*(numbers[0] if numbers else [NUMBER] * 5), 1.0, 0.0, 0.0, 0.0, 0.0]
        return numbers[0] if numbers and tensor.shape == (5,) else real_list(tensor)

    trains = "=" in words[0]
    command = on_device(cli._dispatch) if not trains and "export" not in words else cli._dispatch
    command = on_device(two_texts) if "serve" in words else command
    devices = max((int(word[16:]) for word in words if word.startswith("trainer.devices=")), default=1)
    with (
        seen_by_rank_zero(devices),
        mock.patch.object(run, "train_from", on_device(real_train_from)),
        mock.patch.object(stages, "ask", on_device(stages.ask)),
        mock.patch.object(finish, "keep_baselines"),
        mock.patch.object(contents, "pack_tensors", stand_in),
        mock.patch.object(contents, "first_non_finite", return_value=None),
        mock.patch.object(saving, "np", mock.Mock(isfinite=lambda _: np.True_)),  # no device fills the copies
        mock.patch.object(saving, "require_space"),  # stand-ins take none
        mock.patch.dict(globals(), list_of=answers),
    ):
        try:
            code, error = command(["train"] * trains + words) or 0, ""
        except Exception as fault:
            code, error = getattr(fault, "exit_code", 1), traceback.format_exc()
    waits = sum((record.places for record, _ in seen), collections.Counter[tuple[str, str]]())
    return {"code": code, "error": error, "peak": max((memory.most for _, memory in seen), default=0)} | {
        "waits": [[kind, place, count] for (kind, place), count in sorted(waits.items())]
    }


if __name__ == "__main__":
    commands = " ".join(sys.argv[1:]).split(" -- ")
    print(json.dumps([rehearse(command.split()) for command in commands]))
