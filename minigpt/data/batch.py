"""Batches: which tokens a micro-batch holds is a pure function of its index.

Nothing is made ahead in other processes or threads: a micro-batch is copied from a memory map in a fraction of a
millisecond, hundreds of times as fast as a model trains on it (docs/PERFORMANCE.md).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minigpt.data.order import batch_of_step, window_starts


@dataclass
class Batch:
    """Windows of text for one forward pass.

    Attributes:
        tokens: (B, T) int64.
        targets: (B, T) int64, the tokens one place later.
        weights: (B, T) float32, how much each target counts in the loss; None if all count the same.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""
        moved = {name: part.to(device, non_blocking=non_blocking) for name, part in self._parts().items()}
        return replace(self, **moved)

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, from which a GPU copies without waiting."""
        return replace(self, **{name: part.pin_memory() for name, part in self._parts().items()})

    def _parts(self) -> dict[str, Tensor]:
        return {name: part for name, part in vars(self).items() if part is not None}


class Split(Protocol):
    """What batches are cut from: minigpt.data.shards.TokenSplit, or anything else of this form."""

    def __len__(self) -> int:
        """Number of tokens."""

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Tokens (n, length) of the windows that begin at `starts`."""

    def weights(self, starts: NDArray[np.int64], length: int) -> NDArray[np.float32] | None:
        """The weights (n, length) of these windows' tokens as targets, or None if all count the same."""


class MicroBatches:
    """Micro-batch i of one rank: part i % accumulate of optimizer step i // accumulate.

    A step's windows are dealt out as (micro-batch, rank, sequence), so the step holds the same windows for any
    number of devices and micro-batches. Iterating gives those of optimizer step `start_step` and all later ones,
    without end.

    Args:
        split: the training tokens.
        seed: of the data order.
        block_size: T.
        micro_batch: sequences per forward pass and device.
        accumulate: forward passes per optimizer step.
        rank: of this process.
        world_size: number of processes.
        skipped_batches: (first, last) batches that no step trains on (see minigpt.data.order).
        start_step: optimizer steps already done.
        pin_memory: whether batches that are iterated over are made for copying to a GPU.
    """

    def __init__(
        self,
        split: Split,
        *,
        seed: int,
        block_size: int,
        micro_batch: int,
        accumulate: int,
        rank: int = 0,
        world_size: int = 1,
        skipped_batches: Sequence[Sequence[int]] = (),
        start_step: int = 0,
        pin_memory: bool = False,
    ):
        self.split = split
        self.seed = seed
        self.block_size = block_size
        self.micro_batch = micro_batch
        self.accumulate = accumulate
        self.rank = rank
        self.world_size = world_size
        self.skipped_batches = skipped_batches
        self.start_step = start_step
        self.pin_memory = pin_memory

    def __iter__(self) -> Iterator[Batch]:
        for index in itertools.count(self.start_step * self.accumulate):
            yield self[index].pin_memory() if self.pin_memory else self[index]

    def __getitem__(self, index: int) -> Batch:
        """The batch of (micro_batch, block_size) tokens with this number."""
        step, part = divmod(index, self.accumulate)
        starts = window_starts(
            batch_of_step(step, self.skipped_batches),
            seed=self.seed,
            n_tokens=len(self.split),
            block_size=self.block_size,
            sequences=self.accumulate * self.world_size * self.micro_batch,
        )
        mine = starts.reshape(self.accumulate, self.world_size, self.micro_batch)[part, self.rank]
        windows = torch.from_numpy(self.split.windows(mine, self.block_size + 1))
        weights = self.split.weights(mine + 1, self.block_size)
        return Batch(
            windows[:, :-1].contiguous(),
            windows[:, 1:].contiguous(),
            None if weights is None else torch.from_numpy(weights),
        )
