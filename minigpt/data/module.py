"""Batches for the Trainer: which tokens a micro-batch holds is a pure function of its index."""

from collections.abc import Callable, Sequence

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import Dataset

from minigpt.data.loading import Loading
from minigpt.data.order import batch_of_step, window_starts
from minigpt.data.shards import TokenSplit


class MicroBatches(Dataset):
    """Micro-batch i of one rank: part i % accumulate of optimizer step i // accumulate.

    A step's windows are dealt out as (micro-batch, rank, sequence), so the step holds the same windows for any
    number of devices and micro-batches.
    """

    def __init__(
        self,
        split: TokenSplit,
        *,
        seed: int,
        block_size: int,
        micro_batch: int,
        accumulate: int,
        rank: int = 0,
        world_size: int = 1,
        skipped_batches: Sequence[Sequence[int]] = (),
    ):
        self.split = split
        self.seed = seed
        self.block_size = block_size
        self.micro_batch = micro_batch
        self.accumulate = accumulate
        self.rank = rank
        self.world_size = world_size
        self.skipped_batches = skipped_batches

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """(tokens, targets), each (micro_batch, block_size) int64; targets are the tokens one place later."""
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
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class TokenData(L.LightningDataModule):
    """The training batches from optimizer step `start_step` on.

    Nothing about the position is stored or restored: the loader is built where the run stands.

    Args:
        split: the training tokens.
        seed: of the data order.
        block_size: T.
        micro_batch: sequences per forward pass and device.
        accumulate: forward passes per optimizer step.
        start_step: optimizer steps already done.
        workers: loader processes.
        skipped_batches: (first, last) batches that no step trains on (see minigpt.data.order).
        on_loss: told in a sentence when a loader process was killed.
    """

    def __init__(
        self,
        split: TokenSplit,
        *,
        seed: int,
        block_size: int,
        micro_batch: int,
        accumulate: int,
        start_step: int = 0,
        workers: int = 0,
        skipped_batches: Sequence[Sequence[int]] = (),
        on_loss: Callable[[str], object] = print,
    ):
        super().__init__()
        self.split = split
        self.seed = seed
        self.block_size = block_size
        self.micro_batch = micro_batch
        self.accumulate = accumulate
        self.start_step = start_step
        self.workers = workers
        self.skipped_batches = skipped_batches
        self.on_loss = on_loss

    def train_dataloader(self) -> Loading:
        trainer = self.trainer
        batches = MicroBatches(
            self.split,
            seed=self.seed,
            block_size=self.block_size,
            micro_batch=self.micro_batch,
            accumulate=self.accumulate,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
            skipped_batches=self.skipped_batches,
        )
        return Loading(batches, start=self.start_step * self.accumulate, workers=self.workers, on_loss=self.on_loss)
