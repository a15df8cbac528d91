"""Steps of training, and the memory that they take; in a process of their own by `python counted.py CASE`, JSON out.

CASE is JSON: what `step_of` takes, and "how": "allocated" (what torch's CPU allocator gave, at the fullest moment) or
"resident" (what the system gave the process). Several devices are one process that talks to itself: torch's group for
tests, whose collectives do nothing, takes the memory of rank 0.
"""

import json
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from minigpt.config.schema import ModelConfig, OptimizerConfig, TrainConfig
from minigpt.machine.budget import Plan, budget_of
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss
from minigpt.ranks.allocator import keep_freed_memory
from minigpt.training.optimizer import build_optimizer

V = {"small": 512, "large": 8000}


def peak_resident() -> int:
    """Bytes that this process had at most. Linux counts in ru_maxrss what the process had that started this one."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found
    return int(found[1]) * 1024


def allocated(step) -> int:
    """Bytes at the fullest moment of a step, beside what there was before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    now = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def cut(gpt: GPT, plan: Plan) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=plan.devices, store=FakeStore())
    sizes = (plan.devices,) if plan.shards == plan.devices else (plan.devices // plan.shards, plan.shards)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("copy", "part")[-len(sizes) :])
    for block in gpt.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=plan.reshard)
    fully_shard(gpt, mesh=mesh, reshard_after_forward=False)


def measure(case: dict) -> tuple[int, int]:
    """What was counted, and the budget."""
    model, precision = ModelConfig(**case["model"]), case["precision"]
    plan, optimizer_name = Plan(**case["plan"]), case.get("optimizer", "adamw")
    model = replace(model, checkpoint_activations=plan.checkpoint_activations)
    config = TrainConfig(model=model, optimizer=OptimizerConfig(name=optimizer_name))
    if case.get("how") == "resident":  # what libraries take at their first use is no part of the model's
        measure({**case, "how": "allocated", "model": {**case["model"], "n_layer": 1, "n_head": 1, "n_embd": 16}})
        keep_freed_memory()
    before = peak_resident()
    gpt = GPT(model, V[case["vocabulary"]], kernel=case["kernel"]).train()
    if plan.shards > 1:
        cut(gpt, plan)
    optimizer = build_optimizer(config.optimizer, gpt, precision=precision)
    tokens = torch.zeros(plan.micro_batch, model.block_size, dtype=torch.int64)

    def step() -> None:
        for part in range(plan.accumulate):
            last = part == plan.accumulate - 1
            if plan.shards > 1:
                gpt.set_requires_gradient_sync(last or plan.reshard)
                gpt.set_reshard_after_backward(last or plan.reshard)
            with autocast("cpu", precision):
                loss = next_token_loss(gpt, tokens, tokens, chunk=plan.loss_chunk)
            loss.backward()
        for parameter in gpt.parameters():
            parameter.grad = torch.zeros_like(parameter) if plan.shards > 1 else parameter.grad  # nobody has sent any
        optimizer.found_inf = torch.zeros(())  # as the guard of a run sets it
        optimizer.step()
        optimizer.zero_grad()

    budget = budget_of(config, V[case["vocabulary"]], plan, precision=precision, kernel=case["kernel"]).peak
    step()
    if case.get("how") == "resident":
        step()
        return (peak_resident() - before), budget
    local = [each.to_local() if plan.shards > 1 else each for each in gpt.parameters()]
    held = sum(each.nbytes for each in local)
    for state in optimizer.state.values():
        held += sum((each.to_local() if hasattr(each, "to_local") else each).nbytes for each in state.values())
    return held + allocated(step), budget


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(json.loads(sys.argv[1]))))
