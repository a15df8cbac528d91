"""The memory that a training step takes on each device, in closed form from the model's sizes and the layout.

It chooses the micro-batch (choices.py), `minigpt plan` prints it, and a test holds it to what real steps take.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minigpt.config.schema import ModelConfig, TrainConfig, TrainerConfig
from minigpt.model.counting import attention_width, sizes_of

if TYPE_CHECKING:
    from minigpt.machine.choices import Choices


def shard_count(trainer: TrainerConfig) -> int:
    """Return the number of processes that hold one copy of the weights together; 1 if each holds all weights."""
    if not trainer.sharded:
        return 1
    return trainer.nodes * trainer.devices if trainer.strategy == "fsdp" else trainer.shards or trainer.devices


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by what they hold.

    Gradients are allocated while activations are freed, so `peak`, the most at any moment of a step, is less than the
    sum.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int  # with their gradients; for a loss in chunks, one chunk and the gradient of the output layer's weight
    working: int  # weights gathered from other devices, and their gradients; 16-bit copies; an update's products
    peak: int


def step_memory(config: TrainConfig, choices: "Choices", vocab_size: int) -> Memory:
    """Return the memory of an optimizer step after the first one, on one device."""
    model, shards = config.model, shard_count(config.trainer)
    sizes = sizes_of(model, vocab_size, config.adapter)
    wide = 8 if choices.precision == "fp64" else 4  # bytes of a weight
    half = 2 if choices.precision in ("bf16", "fp16") else 0  # bytes of its 16-bit copy, if products take one
    tokens = choices.micro_batch * model.block_size
    layers = model.n_layer
    block = tokens * block_bytes(model, wide, half or wide, choices.attention_kernel, masked=config.data.mask_documents)
    kept = tokens * wide * model.n_embd if model.checkpoint_activations else block
    activations = layers * kept + tokens * (wide + (half or wide)) * model.n_embd
    rows = min(choices.loss_chunk or tokens, tokens)
    logits, table = rows * math.ceil(vocab_size / 64) * 64, wide * sizes.output  # its gradient, where it is computed
    # A GPU's log softmax reads 16-bit logits, and its gradient is 16 bits wide; a CPU makes 32-bit copies.
    copy = half if half and choices.device == "cuda" else wide
    if choices.loss_chunk:
        logits = logits * (2 * wide + half) + sizes.output * (wide + 2 * half)
        head = 2 * table
    else:
        head = max(logits * (2 * wide + copy), 2 * wide * logits + table)
        logits *= wide + copy + (half if copy == wide else 0)

    weights, gradients = (math.ceil(wide * numbers / shards) for numbers in (sizes.all, sizes.learning))
    muon, mean = config.optimizer.name == "muon", config.optimizer.average_fraction > 0
    # Muon has one average of a matrix in place of two.
    optimizer = math.ceil(wide * ((2 + mean) * sizes.learning - muon * sizes.learning_matrices) / shards)
    # Muon's directions and products, measured on matrices of up to 768 x 3,072.
    update = sizes.learning_matrices * {"bf16": 10, "fp64": 30}.get(choices.precision, 15) // shards if muon else 0
    copies = half * (layers * sizes.block_matrices + (0 if choices.loss_chunk else sizes.output))
    root, whole = wide * (sizes.all - layers * sizes.block), wide * sizes.all
    # FSDP2 gathers a block's weights and the next one's; the root's stay, and gradients are whole before they are sent.
    at_loss, at_head, at_block, at_end = [2 * whole] * 4 if shards > 1 else [0] * 4
    at_first = at_block
    if shards > 1 and (choices.reshard or choices.accumulate == 1):  # a step's last backward pass frees and sends all
        at_loss, at_end = root if choices.reshard else whole, 2 * root
        at_head, at_block = (at_loss + n * wide * sizes.block + (n - 2) * root for n in (2, 3))
        at_first = at_block - at_loss + root
    # Gradients that exist in the backward pass from its start: of earlier micro-batches, and DDP's buckets.
    early = gradients if choices.accumulate > 1 or (choices.devices > 1 and shards == 1) else 0
    in_block = 5 * block // 4 if model.checkpoint_activations else block // 2  # recomputed, and gradients; measured
    moments = (
        gradients + activations + copies + logits + at_loss,  # the last step's gradients are not freed yet
        early + activations + copies + head + at_head,
        early + activations + copies + in_block + at_block,  # the last block's backward pass
        gradients + kept + in_block + copies + at_first,  # the first block's
        gradients + table + at_end,  # the embedding's
        gradients + update,
    )
    peak = weights + optimizer + max(moments)
    return Memory(weights, gradients, optimizer, activations, max(logits, head), max(at_block, update) + copies, peak)


def block_bytes(model: ModelConfig, wide: int, product: int, kernel: str, *, masked: bool) -> int:
    """Return the bytes that a block saves for its backward pass, per token.

    A number in the stream has `wide` bytes, one in matrix products `product`; `masked`: documents are kept apart.
    """
    C, T, H = model.n_embd, model.block_size, model.n_head
    queries, gated = attention_width(model), model.activation == "swiglu"
    keys = queries // H * (model.n_kv_head or H)
    hidden = model.n_hidden or (math.ceil(8 * C / 3 / 32) * 32 if gated else 4 * C)
    scores = H * T if kernel == "explicit" and model.attention != "linear" else 0
    numbers = 2 * C + queries + 2 * keys + queries  # inputs of two products, queries, keys and values, the output
    numbers += (4 if gated else 2) * hidden + scores
    if model.attention == "rotary":  # turned queries and keys, and before that normalised ones
        numbers += (queries + keys) * (2 if model.qk_norm == "rmsnorm" else 1)
    if keys < queries:
        numbers += 2 * queries  # keys and values, repeated for each head of queries
    if model.dropout:  # which values were kept, and the weights without those that were dropped
        numbers += 2 * C + 2 * scores
    if masked:
        numbers += scores or queries + T
    of_linear = 11 * queries * wide if model.attention == "linear" else 0  # feature maps and states, never in 16 bits
    return 2 * C * wide + numbers * product + of_linear
