"""Batches: which tokens a micro-batch holds is a pure function of its index.

There are no worker processes: a micro-batch is copied from a memory map in a fraction of a
millisecond, hundreds of times as fast as a model trains on it (docs/PERFORMANCE.md).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from minigpt.attention.masks import Documents, find_documents
from minigpt.config.schema import DataConfig
from minigpt.data.chat.packing import Split
from minigpt.data.order import batch_of_step
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizers.dropout import BPEDropout


@dataclass
class Batch:
    """Windows of text for one forward pass.

    Attributes:
        tokens: (B, T) int64.
        targets: (B, T) int64, the tokens one place later.
        weights: (B, T) float32, how much each target counts in the loss; None if all count the same.
        documents: the documents in the windows, if attention stays within a document.
        divisor: what the sum of the weighted losses is divided by; None: the sum of the weights. A step's loss is the
            sum of weighted losses over all its batches, divided by the sum of their divisors.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor | None = None
    documents: Documents | None = None
    divisor: float | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the same batch on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the same batch in page-locked memory, from which a GPU copies without waiting."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        weights = None if self.weights is None else change(self.weights)
        documents = None if self.documents is None else Documents(*map(change, self.documents))
        return Batch(change(self.tokens), change(self.targets), weights, documents, self.divisor)


def document_end(data: DataConfig, tokenizer: Tokenizer) -> int | None:
    """Return the token behind each document, if the config masks attention between documents."""
    assert not data.mask_documents or tokenizer.eot is not None, "config/rules.py asks for a tokenizer that has one"
    return tokenizer.eot if data.mask_documents else None


@dataclass
class MicroBatches:
    """Micro-batch i of one rank: part i % accumulate of optimizer step i // accumulate.

    A step's windows are dealt out as (micro-batch, rank, sequence), so the step holds the same windows for any
    number of devices and micro-batches. Iterating gives the micro-batches of step `start_step` and of all later ones,
    without end.

    Args:
        split: the training tokens; anything with `window_starts`, `windows` and `weights` will do.
        seed: of the data order.
        block_size: T.
        micro_batch: sequences per forward pass and device.
        accumulate: forward passes per optimizer step.
        rank, world_size: number of this process, and of processes.
        skipped_batches: (first, last) batches that no step trains on (see minigpt.data.order).
        start_step: optimizer steps already done.
        pin_memory: whether iterating gives batches in page-locked memory, for copying to a GPU.
        document_end: the token after each document, if attention stays within a document (see `document_end`).
        dropout: encodes the windows of the first steps with some merges left out.
    """

    split: Split
    _: KW_ONLY
    seed: int
    block_size: int
    micro_batch: int
    accumulate: int
    rank: int = 0
    world_size: int = 1
    skipped_batches: Sequence[Sequence[int]] = ()
    start_step: int = 0
    pin_memory: bool = False
    document_end: int | None = None
    dropout: BPEDropout | None = None

    def __iter__(self) -> Iterator[Batch]:
        for index in itertools.count(self.start_step * self.accumulate):
            yield self[index].pin_memory() if self.pin_memory else self[index]

    def __getitem__(self, index: int) -> Batch:
        """Return the batch of (micro_batch, block_size) tokens with this number."""
        step, part = divmod(index, self.accumulate)
        shape = (self.accumulate, self.world_size, self.micro_batch)
        order = {"seed": self.seed, "block_size": self.block_size, "sequences": math.prod(shape)}
        starts = self.split.window_starts(batch_of_step(step, self.skipped_batches), **order)
        rank_starts = starts.reshape(shape)[part, self.rank]
        tokens = self.split.windows(rank_starts, self.block_size + 1)
        windows = torch.from_numpy(self.dropout(step, tokens, rank_starts) if self.dropout else tokens)
        weights = self.split.weights(rank_starts + 1, self.block_size)
        inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        batch = Batch(inputs, targets, None if weights is None else torch.from_numpy(weights))
        return batch if self.document_end is None else mask_between_documents(batch, self.document_end)


def mask_between_documents(batch: Batch, end: int) -> Batch:
    """Return a batch in which attention stays within a document; the token after an end-of-text is no target."""
    inside = (batch.tokens != end).float()
    weights = inside if batch.weights is None else batch.weights * inside
    return Batch(batch.tokens, batch.targets, weights, find_documents(batch.tokens, end))
