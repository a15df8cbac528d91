"""FSDP2: each process holds a part of every weight, and has a block's whole weights only while it computes with them.

Two layouts: `fsdp` cuts the weights into as many parts as there are processes; `hsdp` into as many as a group has
processes, and every group holds a copy. Gradients are cut and averaged likewise.

Source: Zhao et al. 2023, "PyTorch FSDP"; torch.distributed.fsdp.fully_shard.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from minigpt.config.schema import SHARDED, TrainConfig, TrainerConfig
from minigpt.machine.choices import Choices
from minigpt.machine.compiling import compiler_options
from minigpt.model.empty import empty_gpt
from minigpt.model.gpt import GPT


@dataclass(frozen=True)
class Layout:
    """Which part of which copy of the weights this process holds."""

    mesh: DeviceMesh
    part: int = 0
    parts: int = 1
    copy: int = 0

    @property
    def group(self) -> dist.ProcessGroup:
        """The processes that hold this copy of the weights together."""
        return self.mesh.get_group("part")


def parts_of(trainer: TrainerConfig) -> int:
    """Return the number of processes that hold one copy of the weights together; 1 if each holds all weights."""
    if trainer.strategy not in SHARDED:
        return 1
    return trainer.nodes * trainer.devices if trainer.strategy == "fsdp" else trainer.shards or trainer.devices


def make_layout(trainer: TrainerConfig, device: str) -> Layout | None:
    """Return this process's layout, or None if each process holds all weights. All processes of the run call it."""
    parts = parts_of(trainer)
    if parts == 1:
        return None
    names, sizes = ("part",), (parts,)
    if trainer.strategy == "hsdp":
        names, sizes = ("copy", "part"), (trainer.nodes * trainer.devices // parts, parts)  # type: ignore[assignment]
    mesh = init_device_mesh(device, sizes, mesh_dim_names=names)
    copy = mesh.get_local_rank("copy") if "copy" in names else 0
    return Layout(mesh, mesh.get_local_rank("part"), parts, copy)


def shard(gpt: GPT, layout: Layout, config: TrainConfig, choices: Choices) -> None:
    """Cut a model's weights, in place: block by block, then those around the blocks. Other processes' parts are freed.

    Each block is compiled on its own, so that its gradients are sent while those of the previous block are computed.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if config.trainer.gather == "bf16":  # the stream is in bf16 too: a norm needs the dtype of its weights
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    frees = reshards(config.trainer, choices)
    for block in gpt.blocks:
        if choices.compile:
            block.compile(dynamic=False, options=compiler_options(choices.device))
        fully_shard(block, mesh=layout.mesh, mp_policy=policy, reshard_after_forward=frees)
    fully_shard(gpt, mesh=layout.mesh, reshard_after_forward=False)


def reshards(trainer: TrainerConfig, choices: Choices) -> bool:
    """Return whether gathered weights are freed after each use, and gathered and reduced for each micro-batch.

    Otherwise both happen once in an optimizer step, however many micro-batches it has, and weights and gradients are
    whole in between: that takes more memory and less communication.
    """
    return trainer.reshard == "on" or (trainer.reshard == "auto" and choices.accumulate == 1)


def begin_micro_batch(gpt: Any, *, last: bool, reshard: bool) -> None:
    """Set what the next micro-batch does with gathered weights and gradients.

    Args:
        gpt: sharded.
        last: whether it is its optimizer step's last.
        reshard: as from `reshards`.
    """
    gpt.set_requires_gradient_sync(last or reshard)
    gpt.set_reshard_after_backward(last or reshard)


class Silent:
    """A collective that takes its memory but sends nothing, so that no process waits for one out of memory."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer for sending or receiving."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Send nothing."""


def silent_twin(config: TrainConfig, layout: Layout, vocab_size: int, choices: Choices) -> GPT:
    """Return a model that takes the memory of this process's part and computes as it would, without communication.

    Its weights are uninitialised.
    """
    twin = empty_gpt(config.model, vocab_size, kernel=choices.attention_kernel, device="meta")
    if choices.precision == "fp64":
        twin.double()
    shard(twin, layout, config, choices)
    module: Any
    for module in twin.modules():
        if hasattr(module, "set_custom_all_gather"):
            module.set_custom_all_gather(Silent())
            module.set_custom_reduce_scatter(Silent())
            module.set_requires_all_reduce(False)
    twin.to_empty(device=choices.device)
    return twin.train()


@torch.no_grad()
def sample_together(gpt: Any, rank: int, write: Callable[[Callable[..., Tensor]], str | None]) -> str | None:
    """Let rank 0 write with a sharded model; all other processes gather the weights with it.

    Args:
        gpt: sharded.
        rank: of this process.
        write: called on rank 0 with (tokens, lengths, cache) -> (B, V) logits, as the sampling loop wants it.

    Returns:
        What `write` returns; "" on other ranks.
    """
    device = next(gpt.parameters()).device
    more = torch.ones(1, dtype=torch.int32, device=device)

    def forward(tokens: Tensor, lengths: Sequence[int], cache: None) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # gathered weights may be used for training afterwards
            dist.broadcast(more, 0)
            logits = gpt(tokens.clone().to(device))
        return logits[torch.arange(len(lengths)), torch.tensor(lengths) - 1]

    text: str | None = ""
    if rank == 0:
        text = write(forward)
        dist.broadcast(torch.zeros_like(more), 0)
    else:
        dist.broadcast(more, 0)
        while more.item():
            gpt(torch.zeros(1, 1, dtype=torch.int64, device=device))
            dist.broadcast(more, 0)
    free_gathered(gpt)
    return text


def free_gathered(gpt: GPT) -> None:
    """Free weights that forward passes without a backward pass have gathered: the next step gathers them anew."""
    module: Any
    for module in gpt.modules():
        if hasattr(module, "reshard"):
            module.reshard()
