"""Steps of training, and the memory that they take; in a process of their own by `python measured.py CASE`, JSON out.

Several devices are one process that talks to itself: torch's group for tests, whose collectives do nothing, takes the
memory of rank 0.
"""

import gc
import json
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from minigpt.config.schema import DataConfig, ModelConfig, OptimizerConfig, TrainConfig, TrainerConfig
from minigpt.machine.choices import Choices
from minigpt.machine.memory import shard_count, step_memory
from minigpt.machine.sharding import begin_micro_batch
from minigpt.machine.torch_setup import keep_freed_memory
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss
from minigpt.training.optimizer import build_optimizer


def peak_resident() -> int:
    """Bytes that this process had at most."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def allocated(step) -> int:
    """Bytes at the fullest moment of a step, beside what there was before it."""
    for _ in range(2):  # the first one notes the sizes of gradients, which the second one frees
        gc.collect()  # what an earlier step has left must not be freed in this one
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
            step()
    now = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def shard(gpt, trainer, choices):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=choices.devices, store=FakeStore())
    shards = shard_count(trainer)
    sizes = (choices.devices,) if shards == choices.devices else (choices.devices // shards, shards)
    mesh = init_device_mesh(choices.device, sizes, mesh_dim_names=("copy", "part")[-len(sizes) :])
    for block in gpt.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=choices.reshard)
    fully_shard(gpt, mesh=mesh, reshard_after_forward=False)


def measure(case: dict, device: str = "cpu", allocated=allocated) -> tuple[int, int]:
    """What a step takes in bytes, and what the formula says.

    Args:
        case: "vocabulary", "how" (allocated: by torch's allocator; resident: by the process), fields of ModelConfig in
            "model", of TrainerConfig in "trainer", of Choices in "choices", and "optimizer".
        device: where to compute.
        allocated: bytes at the fullest moment of a step on that device, beside what there was before it.
    """
    V, model = case["vocabulary"], ModelConfig(**case["model"])
    chosen = {"precision": "fp32", "attention_kernel": "fused", "devices": 1, "accumulate": 1} | case["choices"]
    choices = Choices(device=device, compile=False, validation_batch=1, threads=1, **chosen)
    trainer = TrainerConfig(**case.get("trainer", {}))
    optimizer_config = OptimizerConfig(name=case.get("optimizer", "adamw"))
    config = TrainConfig(model=model, trainer=trainer, optimizer=optimizer_config, data=DataConfig())
    resident, sharded = case.get("how") == "resident", shard_count(trainer) > 1
    if resident:  # what libraries take at their first use is no part of the model's
        measure({**case, "how": "allocated", "model": {**case["model"], "n_layer": 1, "n_head": 1, "n_embd": 16}})
        keep_freed_memory()
    before = peak_resident()
    with torch.device(device):
        gpt = GPT(model, V, kernel=choices.attention_kernel).train()
    if sharded:
        shard(gpt, trainer, choices)
    optimizer = build_optimizer(optimizer_config, gpt, precision=choices.precision)
    tokens = torch.zeros(choices.micro_batch, model.block_size, dtype=torch.int64, device=device)

    def step() -> None:
        for part in range(choices.accumulate):
            if sharded:
                begin_micro_batch(gpt, last=part == choices.accumulate - 1, reshard=choices.reshard)
            with autocast(device, choices.precision):
                loss = next_token_loss(gpt, tokens, tokens, chunk=choices.loss_chunk)
            if part == 0:
                optimizer.zero_grad()  # as Lightning does: between the forward and the backward pass
            loss.backward()
        for parameter in gpt.parameters():
            parameter.grad = torch.zeros_like(parameter) if sharded else parameter.grad  # nobody has sent any
        optimizer.found_inf = torch.zeros((), device=device)  # as the guard of a run sets it
        optimizer.step()

    step()
    formula = step_memory(config, choices, V).peak
    if resident:
        step()
        return peak_resident() - before, formula
    shards = [weight.to_local() if sharded else weight for weight in gpt.parameters()]
    held = 2 * sum(weight.nbytes for weight in shards)  # with their gradients
    for state in optimizer.state.values():
        held += sum((tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes for tensor in state.values())
    return held + allocated(step), formula


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(json.loads(sys.argv[1]))))
