"""The memory of a training step on each device, counted from config and layout; nothing is run."""

import math
from dataclasses import dataclass, replace
from typing import Any

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.machine.choices import Choices
from minigpt.machine.sharding import parts_of, reshards
from minigpt.model.counting import NARROW, activation_bytes, adapter_count, chunk_bytes, one_layer


@dataclass(frozen=True)
class Plan:
    """How a run is laid out on its devices, and how much of a step each computes at a time."""

    strategy: str = "ddp"  # ddp (one device, too) | fsdp | hsdp
    devices: int = 1  # processes in all
    shards: int = 1  # devices over which weights, gradients and averages are cut; each such group holds one copy
    micro_batch: int = 1
    accumulate: int = 1
    loss_chunk: int = 0
    checkpoint_activations: bool = False
    reshard: bool = True  # fsdp, hsdp: gathered weights are freed after use, and gradients cut in each micro-batch


@dataclass(frozen=True)
class Budget:
    """Bytes on one device, by what they hold.

    Gradients are made while activations are freed, so `peak`, the most at any moment of a step, is less than the sum.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int  # with their gradients; for a loss in chunks, one chunk and the gradient of the output layer's weight
    working: (
        int  # weights gathered from other devices, and their gradients; copies in half precision; an update's products
    )
    peak: int


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights."""

    all: int
    root: int  # outside the blocks
    block: int
    table: int  # the output layer's weight
    matrices: int  # of all blocks


def weights_of(model: ModelConfig, vocab_size: int, number: int) -> Weights:
    """Return the bytes of a model's weights, `number` bytes each, with the padding of its embedding table."""
    one, layers = one_layer(model, vocab_size), model.n_layer
    root = number * (one.all - one.block)
    block, matrices = number * one.block, number * one.matrices
    return Weights(root + layers * block, root, block, number * one.table, layers * matrices)


def plan_of(config: TrainConfig, choices: Choices) -> Plan:
    """Return the plan of a run."""
    return Plan(
        "ddp" if config.trainer.strategy == "auto" else config.trainer.strategy,
        choices.devices,
        parts_of(config.trainer),
        choices.micro_batch,
        choices.accumulate,
        choices.loss_chunk,
        config.model.checkpoint_activations,
        reshards(config.trainer, choices),
    )


def budget_of(config: TrainConfig, vocab_size: int, plan: Plan, *, precision: str, kernel: str) -> Budget:
    """Count the memory of a step on one device.

    Args:
        config: model and optimizer.
        vocab_size: V.
        plan: devices, micro-batch, chunks and checkpointing, in place of the config's.
        precision: of products: fp32 | bf16 | fp16 | fp64. Weights are in fp32, or in fp64 if products are.
        kernel: of attention.
    """
    model = replace(config.model, checkpoint_activations=plan.checkpoint_activations)
    number, half = 8 if precision == "fp64" else 4, NARROW.get(precision, 0)
    parts = learning = weights_of(model, vocab_size, number)
    if config.adapter.name != "none":
        adapter = number * adapter_count(model, vocab_size, config.adapter)
        parts, learning = replace(parts, all=parts.all + adapter), Weights(adapter, 0, 0, 0, adapter)
    options: dict[str, Any] = {"precision": precision, "kernel": kernel, "masked": config.data.mask_documents}
    block = plan.micro_batch * _block_bytes(model, vocab_size, **options)
    without_logits = plan.micro_batch * activation_bytes(model, vocab_size, **options, chunk=1)
    activations = without_logits - block  # it includes one block's gradients in the backward pass
    if plan.loss_chunk:
        rows = min(plan.loss_chunk, plan.micro_batch * model.block_size)
        logits, going_back = chunk_bytes(model, vocab_size, precision=precision, chunk=rows), 2 * learning.table
    else:
        logits = plan.micro_batch * activation_bytes(model, vocab_size, **options) - without_logits
        going_back = max(logits, 2 * logits // 3 + learning.table)
    muon = config.optimizer.name == "muon"
    weights, gradients = math.ceil(parts.all / plan.shards), math.ceil(learning.all / plan.shards)
    optimizer = math.ceil((2 * learning.all - (learning.matrices if muon else 0)) / plan.shards)
    update = muon_update_bytes(learning.matrices // number, precision) // plan.shards if muon else 0
    copies = half * (parts.matrices + (0 if plan.loss_chunk else parts.table)) // number
    gathered = _gathered(plan, parts)
    stays = plan.devices > 1 if plan.shards == 1 else plan.reshard and plan.accumulate > 1  # DDP's buckets always do
    stay = gradients if stays or (plan.shards == 1 and plan.accumulate > 1) else 0
    in_block = block // 2 + (block if plan.checkpoint_activations else 0)
    moments = (  # bytes besides weights and averages, at moments of a step
        stay + activations + copies + logits + gathered.loss,
        stay + activations + copies + going_back + gathered.head,
        stay + activations + copies + in_block + gathered.block,
        gradients + block + in_block + copies + gathered.block,
        gradients + learning.table + gathered.end,
        gradients + update,
    )
    working = max(gathered.block, gathered.end, update) + copies
    peak = weights + optimizer + max(moments)
    return Budget(weights, gradients, optimizer, activations, max(logits, going_back), working, peak)


def muon_update_bytes(numbers: int, precision: str) -> int:
    """Return the bytes that Muon's update of so many numbers in matrices takes for a moment, at most.

    They are directions, products of the iteration, and copies to undo a bad step: about 19 bytes a number if products
    are in bf16, 27 in fp32, measured on a GPT with matrices of up to 768 x 3,072.
    """
    return numbers * {"bf16": 20, "fp64": 54}.get(precision, 27)


@dataclass(frozen=True)
class _Gathered:
    """Bytes of weights from other devices, and of gradients on their way to them, at moments of a step."""

    loss: int = 0
    head: int = 0
    block: int = 0
    end: int = 0


def _gathered(plan: Plan, parts: Weights) -> _Gathered:
    """Count those bytes for FSDP2 with a unit per block and one around all, whose weights stay gathered.

    Without `reshard` weights and gradients stay whole from a step's first micro-batch to its last.
    """
    if plan.shards == 1:
        return _Gathered()
    if not plan.reshard:
        return _Gathered(*[2 * parts.all] * 4)
    blocks = parts.root + 2 * parts.block  # the one that is computed, and the one that comes next
    return _Gathered(parts.root, blocks, blocks + parts.root + parts.block, 2 * parts.root)


def _block_bytes(model: ModelConfig, vocab_size: int, **options: Any) -> int:
    """Return the bytes that one sequence saves in a block that is not checkpointed."""
    one, two = (replace(model, n_layer=layers, checkpoint_activations=False) for layers in (1, 2))
    return activation_bytes(two, vocab_size, **options) - activation_bytes(one, vocab_size, **options)


PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "working")


def gigabytes(budget: Budget) -> list[str]:
    """Return the GB of each of PARTS."""
    return [f"{getattr(budget, part) / 1e9:.2f}" for part in PARTS]
