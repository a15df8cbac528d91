"""What a training step of a GPT costs, counted from the model itself: floating-point operations and bytes.

The model runs on tensors without storage, so counting takes a tenth of a second for any size. All blocks are alike: one
or two are counted, and their number gives the rest.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from minigpt.attention.masks import Documents
from minigpt.config.schema import AdapterConfig, ModelConfig
from minigpt.model.adapter import put_on
from minigpt.model.empty import empty_gpt
from minigpt.model.gpt import GPT
from minigpt.model.loss import autocast, next_token_loss, weighted_loss_sum

PRIME = 1_000_003  # sequences of a counted batch: a tensor whose bytes are a multiple of it grows with the batch
NARROW = {"bf16": 2, "fp16": 2}  # bytes of a number in matrix products, where a weight has another size


@dataclass(frozen=True)
class OneLayer:
    """The numbers in the weights of a model of one layer."""

    all: int
    block: int
    matrices: int  # of the block
    table: int  # the output layer's weight


def one_layer(config: ModelConfig, vocab_size: int) -> OneLayer:
    """Return the sizes of a model as it is with one layer, with the padding of its embedding table."""
    return _one_layer(tuple(vars(config).items()), vocab_size)


@functools.cache  # asked more than once before the first step
def _one_layer(settings: tuple[tuple[str, Any], ...], vocab_size: int) -> OneLayer:
    one = empty_gpt(replace(ModelConfig(**dict(settings)), n_layer=1), vocab_size, device="meta")
    whole, block = (sum(each.numel() for each in part.parameters()) for part in (one, one.blocks))
    matrices = sum(each.numel() for each in one.blocks.parameters() if each.dim() == 2)
    return OneLayer(whole, block, matrices, one.output_weight.numel())


def parameter_count(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of a model's weights, with the padding of its embedding table."""
    one = one_layer(config, vocab_size)
    return one.all + (config.n_layer - 1) * one.block


def adapter_count(config: ModelConfig, vocab_size: int, adapter: AdapterConfig) -> int:
    """Return the number of an adapter's weights, the only ones that are trained with it."""
    one = empty_gpt(replace(config, n_layer=1), vocab_size, device="meta")
    put_on(one, adapter)
    return config.n_layer * sum(each.numel() for each in one.parameters() if each.requires_grad)


def flops_per_token(config: ModelConfig, vocab_size: int) -> float:
    """Return the floating-point operations per token of a training step: matrix products, forward and backward.

    They are those of the plain step: what `checkpoint_activations` computes twice counts once, as is usual for MFU, and
    masked attention scores count like others. Look-ups of embeddings count nothing.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """

    def count(n_layer: int) -> int:
        gpt, tokens = _plain_model(config, vocab_size, n_layer, kernel="explicit")
        with FlopCounterMode(display=False) as counter:
            next_token_loss(gpt, tokens, tokens).backward()
        return counter.get_total_flops()

    with FakeTensorMode(allow_non_fake_inputs=True):
        one, two = count(1), count(2)
    return (one + (config.n_layer - 1) * (two - one)) / config.block_size


def activation_bytes(
    config: ModelConfig, vocab_size: int, *, precision: str, kernel: str, masked: bool = False, chunk: int = 0
) -> int:
    """Return the memory in bytes that one sequence adds to a training step; `masked`: its documents are kept apart.

    It is what the forward pass saves for the backward pass and, in the backward pass, the gradients of one block's
    tensors and of the logits, these in two precisions. (With the loss in chunks of `chunk` rows the logits are not part
    of it; see `chunk_bytes`.) With `checkpoint_activations` each block saves its input only. Masks of dropout are not
    counted.
    """
    return _activation_bytes(tuple(vars(config).items()), vocab_size, precision, kernel, masked, chunk)


@functools.cache  # asked more than once before the first step
def _activation_bytes(
    settings: tuple[tuple[str, Any], ...], vocab_size: int, precision: str, kernel: str, masked: bool, chunk: int
) -> int:
    config = ModelConfig(**dict(settings))

    saved: dict[int, int] = {}  # storage -> bytes of one sequence: views of one tensor count once
    around_block: list[int] = []

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() % PRIME == 0:  # it grows with the batch: no weight, no constant
            saved[storage._cdata] = storage.nbytes() // PRIME
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True):
        gpt, tokens = _plain_model(config, vocab_size, 1, kernel, batch=PRIME)
        for add_hook in (gpt.blocks[0].register_forward_pre_hook, gpt.blocks[0].register_forward_hook):
            add_hook(lambda *_: around_block.append(sum(saved.values())))
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), autocast("cpu", precision):
            # `loss` keeps all tensors alive until they are counted, so that no storage is used twice.
            if masked:
                documents = Documents(tokens, torch.zeros(2, dtype=torch.int32))
                loss = weighted_loss_sum(gpt, tokens, tokens, torch.ones(tokens.shape), documents, chunk=chunk)
            else:
                loss = next_token_loss(gpt, tokens, tokens, chunk=chunk)
        everything, block = sum(saved.values()), around_block[1] - around_block[0]
        del loss
    kept = 4 * config.block_size * config.n_embd if config.checkpoint_activations else block
    return everything + config.n_layer * kept + (0 if chunk else 8 * config.block_size * vocab_size)


def chunk_bytes(config: ModelConfig, vocab_size: int, *, precision: str, chunk: int) -> int:
    """Return the memory in bytes that the loss in chunks of `chunk` rows takes, whatever the batch.

    It is the logits of a chunk, in the products' precision and twice in fp32, and the gradient of the output layer's
    weight, which is summed in fp32.
    """
    wide, narrow = 8 if precision == "fp64" else 4, NARROW.get(precision, 0)
    padded = math.ceil(vocab_size / 64) * 64
    return (chunk * (2 * wide + narrow) + config.n_embd * (wide + 2 * narrow)) * padded


def _plain_model(config: ModelConfig, vocab_size: int, n_layer: int, kernel: str, batch: int = 1) -> tuple[GPT, Tensor]:
    plain = replace(config, n_layer=n_layer, checkpoint_activations=False, dropout=0.0)
    return GPT(plain, vocab_size, kernel=kernel), torch.zeros(batch, config.block_size, dtype=torch.int64)
