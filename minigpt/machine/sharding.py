"""FSDP2: each process holds a part of every weight, and has a block's whole weights only while it computes with them.

Two layouts: `fsdp` cuts the weights into as many parts as there are processes; `hsdp` into as many as a group has
processes, and every group holds a copy. Gradients are cut and averaged likewise.

Source: Zhao et al. 2023, "PyTorch FSDP"; torch.distributed.fsdp.fully_shard.
"""

from typing import Any

import torch
import torch.distributed as dist

from minigpt.config.schema import TrainConfig, TrainerConfig
from minigpt.machine.choices import Choices
from minigpt.machine.memory import shard_count
from minigpt.machine.torch_setup import compiler_options
from minigpt.model.gpt import GPT
from minigpt.model.parts import held_rows, local


def make_mesh(trainer: TrainerConfig, device: str) -> dist.DeviceMesh:
    """Return the processes, by the copy of the weights and the part of it that each holds. All of them call this."""
    parts = shard_count(trainer)
    copies = [trainer.nodes * trainer.devices // parts] if trainer.strategy == "hsdp" else []
    names = ("copy", "part")[1 - len(copies) :]
    return dist.init_device_mesh(device, (*copies, parts), mesh_dim_names=names)


def shard(gpt: GPT, mesh: dist.DeviceMesh, config: TrainConfig, choices: Choices) -> None:
    """Shard the model in place with FSDP2: each block, then the rest. Rank 0 has the weights and sends them.

    Each block is compiled on its own, so that its gradients are sent while those of the previous block are computed.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    weights, policy = gpt.state_dict(), MixedPrecisionPolicy()
    if config.trainer.gather == "bf16":  # the stream is in bf16 too: a norm needs the dtype of its weights
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for block in gpt.blocks:
        if choices.compile:
            torch._dynamo.config.suppress_errors = True  # a block that the compiler can't take is computed as it is
            block.compile(dynamic=False, options=compiler_options(choices.device))
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=choices.reshard)
    fully_shard(gpt, mesh=mesh, reshard_after_forward=False)
    gpt.to_empty(device=choices.device)
    for name, tensor in gpt.state_dict().items():
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if dist.get_rank() == 0:
            whole.copy_(weights[name])
        dist.broadcast(whole, 0)
        local(tensor).copy_(whole[held_rows(tensor)])


def begin_micro_batch(gpt: Any, *, last: bool, reshard: bool) -> None:
    """Set what the next micro-batch does with gathered weights and gradients; `last`: it is its step's last."""
    gpt.set_requires_gradient_sync(last or reshard)
    gpt.set_reshard_after_backward(last or reshard)


def free_gathered(gpt: GPT) -> None:
    """Free weights that forward passes without a backward pass have gathered: the next step gathers them anew."""
    module: Any
    for module in gpt.modules():
        if hasattr(module, "reshard"):
            module.reshard()
