"""Micro-batches in order, made by worker processes of which any may be killed."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data._utils import signal_handling

from minigpt.faults import UserFault

MAX_LOSSES = 5  # of workers, within so many micro-batches:
WITHIN = 1000
DYING_SECONDS = 2.0  # a process that is gone has closed its connections a little before it can be waited for


class From(Sampler):
    """start, start + 1, ... without end."""

    def __init__(self, start: int):
        self.start = start

    def __iter__(self) -> Iterator[int]:
        index = self.start
        while True:
            yield index
            index += 1


class Loading:
    """The micro-batches start, start + 1, ... without end. Iterating is done in the main thread.

    When the system kills a worker (it was out of memory), all are started anew where the run stands. What they make is
    a function of the index, so nothing else changes.

    Args:
        batches: index -> micro-batch.
        start: the first index.
        workers: processes; 0 makes the batches in this one.
        on_loss: told of each loss in a sentence.
    """

    def __init__(self, batches: Dataset, *, start: int, workers: int, on_loss: Callable[[str], object] = print):
        self.batches = batches
        self.start = start
        self.workers = workers
        self.on_loss = on_loss

    def __iter__(self) -> Iterator[Any]:
        index, losses = self.start, list[int]()
        while True:
            team = Team(self.batches, index, self.workers)
            while (batch := team.next()) is not None:
                index += 1  # before it is handed out: afterwards this frame may never go on
                yield batch
            how = team.dismiss()
            losses = [at for at in losses if at > index - WITHIN] + [index]
            if len(losses) > MAX_LOSSES:
                raise UserFault(
                    f"loader processes were lost {len(losses)} times within {WITHIN} micro-batches (the last {how}). "
                    "Free some memory, or use data.workers=0; the same command goes on from the last checkpoint"
                )
            self.on_loss(f"a loader process was lost ({how}). It is replaced; the run's numbers stay the same")


class Team:
    """A DataLoader's iterator and its worker processes."""

    def __init__(self, batches: Dataset, start: int, workers: int):
        others = set(multiprocessing.active_children())
        loader = DataLoader(
            batches,
            batch_size=None,
            sampler=From(start),
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # of its own: building an iterator draws nothing from the global stream
        )
        # torch's SIGCHLD handler raises in the main thread whatever it is at, in the middle of a step too. Told that
        # it is set already, torch sets none; a loss is then noticed here.
        known = signal_handling._SIGCHLD_handler_set
        signal_handling._SIGCHLD_handler_set = True
        try:
            self.iterator: list[Iterator[Any]] = [iter(loader)]
        finally:
            signal_handling._SIGCHLD_handler_set = known
        self.workers: list[BaseProcess] = [*set(multiprocessing.active_children()) - others]
        self.wanted = workers

    def next(self) -> Any:
        """The next micro-batch, or None when a worker is lost."""
        if self.lost():
            return None
        try:
            return next(self.iterator[0])  # looks after its workers every 5 s when nothing comes
        except Exception:
            if self.wanted:
                for worker in self.workers:
                    worker.join(DYING_SECONDS / self.wanted)
            if not self.lost():
                raise
        return None

    def lost(self) -> bool:
        """Whether a worker has ended. None does by itself."""
        return len(self.workers) < self.wanted or any(worker.exitcode is not None for worker in self.workers)

    def dismiss(self) -> str:
        """End all workers; they may wait for a lock that a killed one holds.

        Returns:
            How the lost one ended.
        """
        codes = [worker.exitcode for worker in self.workers if worker.exitcode is not None]
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
        # The iterator's own clean-up may wait for such a lock for ever. A thread may.
        threading.Thread(target=self.iterator.clear, daemon=True).start()
        if codes and codes[0] is not None and codes[0] < 0:
            return f"killed by signal {-codes[0]}, by hand or out of memory"
        return f"exit code {codes[0]}" if codes else "at once"
