"""A model that trains on the first n processes, with or without its collectives, and the times of these alone."""

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from minigpt.benchmark.scaling.ring import Collective
from minigpt.config.schema import SHARDED, TrainConfig
from minigpt.machine.choices import Choices
from minigpt.machine.compiling import LossFunction, compiled_loss
from minigpt.machine.memory import plain_loss
from minigpt.machine.sharding import Layout, begin_micro_batch, reshards, shard
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast
from minigpt.model.parts import local
from minigpt.splitmix import fold
from minigpt.training.optimizer import build_optimizer

# By their names in torch since about 2.12, or else by those before.
GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Wire:
    """A collective of FSDP2 that counts what this process sends.

    If silent, it sends nothing and fills its output with what this process has: realistic numbers, for the cost of the
    copy that a collective makes, too.
    """

    def __init__(self, collective: Callable[..., Any]):
        self.collective = collective
        self.silent = False
        self.sent = 0  # bytes

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer for sending or receiving."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **options: Any) -> Any:
        self.sent += abs(output_tensor.nbytes - input_tensor.nbytes)
        if not self.silent:
            return self.collective(output_tensor, input_tensor, group=group, **options)
        if output_tensor.numel() > input_tensor.numel():
            for part in output_tensor.split(input_tensor.numel()):
                if part.data_ptr() != input_tensor.data_ptr():  # if equal, the input is already a view of the output
                    part.copy_(input_tensor)
        else:
            output_tensor.copy_(input_tensor.flatten()[: output_tensor.numel()])
        return None


class Loss(nn.Module):
    """The loss as a module, which DDP needs."""

    def __init__(self, gpt: GPT, loss: LossFunction, choices: Choices):
        super().__init__()
        self.gpt, self.loss, self.choices = gpt, loss, choices

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of (B, T) tokens and targets."""
        with autocast(self.choices.device, self.choices.precision):
            return self.loss(self.gpt, tokens, targets)


class Replica:
    """This process's model, or its part of one, with an optimizer of learning rate 0: each step costs the same.

    Args:
        config: model, optimizer and strategy.
        vocab_size: V.
        choices: precision, micro-batch and accumulation.
        mesh: the processes that train together, from `mesh_of`; None: this process alone.
    """

    def __init__(self, config: TrainConfig, vocab_size: int, choices: Choices, mesh: DeviceMesh | None):
        self.config, self.choices, self.mesh = config, choices, mesh
        self.gather, self.reduce = Wire(GATHER), Wire(REDUCE)
        torch.manual_seed(fold(config.seed))
        gpt: Any = GPT(config.model, vocab_size, kernel=choices.attention_kernel).train()
        if choices.precision == "fp64":
            gpt.double()
        self.sharded = mesh is not None and config.trainer.strategy in SHARDED
        group = None
        if mesh is not None and self.sharded:
            layout = Layout(mesh, mesh.get_local_rank("part"), mesh.size(mesh.ndim - 1))
            group = layout.group
            shard(gpt, layout, config, choices)
            warnings.filterwarnings("ignore", message=".*FSDP2-wrapped module.*returned a view.*")  # nothing changes it
            for module in gpt.modules():
                if hasattr(module, "set_custom_all_gather"):
                    module.set_custom_all_gather(self.gather)
                    module.set_custom_reduce_scatter(self.reduce)
        gpt.to(choices.device)
        loss = plain_loss(False, choices.loss_chunk)
        if choices.compile and not self.sharded:
            loss = compiled_loss(choices.device, loss)
        self.gpt, self.loss = gpt, Loss(gpt, loss, choices)
        if mesh is not None and not self.sharded:
            part = mesh.get_group("part")
            self.loss = DistributedDataParallel(self.loss, process_group=part, gradient_as_bucket_view=True)  # type: ignore[assignment]
        self.optimizer = build_optimizer(config.optimizer, gpt, precision=choices.precision, group=group)
        for each in self.optimizer.param_groups:
            each["lr"] = 0.0
        drawn = torch.randint(vocab_size, (choices.micro_batch, config.model.block_size + 1)).to(choices.device)
        self.tokens, self.targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    def step(self, *, silent: bool) -> None:
        """Make an optimizer step as a training does; `silent`: without communication."""
        self.gather.silent = self.reduce.silent = silent
        total: Any = 0.0
        for part in range(self.choices.accumulate):
            last = part == self.choices.accumulate - 1
            quiet = self.mesh is not None and not self.sharded and (silent or not last)
            if self.sharded:
                begin_micro_batch(self.gpt, last=last, reshard=reshards(self.config.trainer, self.choices))
                if silent:
                    self.gpt.set_requires_all_reduce(False)
            with self.loss.no_sync() if quiet else contextlib.nullcontext():  # type: ignore[operator]
                loss = self.loss(self.tokens, self.targets) / self.choices.accumulate
                loss.backward()
            total = total + loss.detach()
        parameters = list(self.gpt.parameters())
        for each in parameters if silent else []:
            if each.grad is None:  # hsdp does not show gradients that were not reduced
                each.grad = torch.zeros_like(each)
        norms = torch._foreach_norm([local(each.grad) for each in parameters])
        numbers = torch.stack([total, torch.linalg.vector_norm(torch.stack(norms)).to(total)])
        if self.mesh is not None and not silent:  # here a training measures the step over all processes
            for name in self.mesh.mesh_dim_names or ():
                dist.all_reduce(numbers, group=self.mesh.get_group(name))
        if self.choices.device != "cuda":
            numbers.tolist()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self, steps: int, *, silent: bool) -> float:
        """Return the mean seconds of a step, on the slowest process."""
        return slowest(lambda: self.step(silent=silent), steps, self.mesh)


def mesh_of(device: str, ranks: int, shards: int) -> DeviceMesh | None:
    """Return the mesh of the first `ranks` processes, with `shards` to a copy of the weights. All processes call it."""
    if ranks == 1:
        return None
    if ranks > shards:
        return DeviceMesh(device, torch.arange(ranks).view(-1, shards), mesh_dim_names=("copy", "part"))
    return DeviceMesh(device, torch.arange(ranks), mesh_dim_names=("part",))


def slowest(work: Callable[[], object], times: int, mesh: DeviceMesh | None) -> float:
    """Return the mean seconds of work that all processes of a mesh do several times, on the slowest process."""
    synchronize(mesh)
    began = time.perf_counter()
    for _ in range(times):
        work()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return synchronize(mesh, (time.perf_counter() - began) / times)


def synchronize(mesh: DeviceMesh | None, value: float = 0.0) -> float:
    """Return the largest value of all processes of a mesh; each process waits for all."""
    found = torch.tensor(value, dtype=torch.float64)
    if mesh is not None:
        found = found.to(mesh.device_type)
        for name in mesh.mesh_dim_names or ():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=mesh.get_group(name))
    return float(found)


def run_collective(each: Collective, mesh: DeviceMesh) -> Callable[[], None]:
    """Return a function that does a collective once, on tensors of its own."""
    group = mesh.get_group(each.group)
    mine = max(1, round(each.size / 4 / each.ranks))
    part, whole = (torch.zeros(size, device=mesh.device_type) for size in (mine, mine * each.ranks))

    def run() -> None:
        if each.kind == "all-gather":
            GATHER(whole, part, group=group)
        elif each.kind == "reduce-scatter":
            REDUCE(part, whole, group=group)
        else:
            dist.all_reduce(whole, group=group)

    return run
