"""When checkpoints are made and which of them stay.

Training stands still while the weights are copied in memory; a thread brings the copy to the disk. There is one such
thread and one copy, so a save waits for the one before it, and the end of a run waits for its last.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.nn as nn
from torch import Tensor

from minigpt import __version__
from minigpt.checkpoint.pack import MODEL, OPTIMIZER, STATE, copy_tensors, first_non_finite, pack_tensors, to_json
from minigpt.checkpoint.store import list_checkpoints, prune, require_space, write_checkpoint
from minigpt.config.schema import CheckpointConfig
from minigpt.faults import NonFiniteTraining, StorageFailure
from minigpt.rundir.rows import RowFile, folder_gone

PAUSES = (0, 1, 2, 4, 8, 16, 32, 64, 64, 64)  # seconds from a failed save to the next try; then the run ends

Files = dict[str, Sequence[bytes | memoryview]]  # contents by file name, in parts


@dataclass
class Snapshot:
    """What a checkpoint holds of a run, as it is now."""

    step: int
    weights: Mapping[str, Tensor]
    averages: Mapping[str, Tensor]  # the optimizer's
    state: Mapping[str, Any]  # state.json
    facts: Mapping[str, Any]  # further entries of the manifest
    files: Files = field(default_factory=dict)  # further files


class Saving:
    """Writes checkpoints (rank 0 only).

    A save that fails while the run goes on is tried again at a later step; the last one of a run must succeed.

    Args:
        folder: the run's checkpoints/.
        fixed: files that are the same in each checkpoint.
        keep: which checkpoints stay.
        row_files: must be on the disk before a checkpoint is.
        say: for the eyes of the user.
        note: for events.jsonl: (kind, **facts).
    """

    def __init__(
        self,
        folder: Path,
        fixed: Files,
        keep: CheckpointConfig,
        *,
        row_files: Sequence[RowFile] = (),
        say: Callable[[str], object] = print,
        note: Callable[..., object] = lambda kind, **facts: None,
    ):
        self.folder = folder
        self.fixed = fixed
        self.keep = keep
        self.row_files = row_files
        self.say = say
        self.note = note
        self.memory: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})  # copies of weights, of averages
        self.thread: ThreadPoolExecutor | None = None
        self.writing: Future[float] | None = None  # gives the seconds until durable
        self.failures = 0  # in a row
        self.retry_at: float | None = None  # time.monotonic()
        self.waited: list[float] = []  # seconds, each save
        self.until_durable: list[float] = []  # seconds, each save that succeeded

    def start(self, model: nn.Module, step: int, total_steps: int | None) -> None:
        """Start the thread, and refuse to begin when the checkpoints that are kept at one time don't fit on the disk.

        Raises:
            StorageFailure: they don't.
        """
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        weights = sum(tensor.nbytes for tensor in model.state_dict().values())
        size = 3 * weights + sum(len(part) for parts in self.fixed.values() for part in parts)
        there, saves = len(list_checkpoints(self.folder)), 1
        if total_steps is not None and self.keep.every_steps:
            saves = max(1, (total_steps - step) // self.keep.every_steps)
        at_once = min(there + saves, max(self.keep.keep_last, 2) + 1)  # a new one is whole before an old one goes
        more = max(at_once - there, 1)
        require_space(
            self.folder, more * size, f"what this run keeps (checkpoints to come: {more} of {size / 1e6:.1f} MB)"
        )

    def retry_is_due(self) -> bool:
        """Whether a failed save is to be tried again now."""
        return self.retry_at is not None and time.monotonic() >= self.retry_at

    def has_to(self, *, due: bool, last: bool) -> bool:
        """Whether to save at this step; a failed save waits for its next try, however often saves are due."""
        if self.writing is not None and self.writing.done():
            self.collect()
        return last or self.retry_is_due() or (due and self.retry_at is None)

    def save(self, snapshot: Snapshot, *, last: bool) -> None:
        """Copy a run's state and have it written; of its last step, wait until it is durable.

        Raises:
            StorageFailure: it is the last, or failed too often, or the run directory is gone.
            NonFiniteTraining: it is the last, and a weight is not finite.
        """
        began = time.perf_counter()
        self.collect()
        broken = first_non_finite(snapshot.weights)
        if broken is not None:
            sentence = f"weight {broken} is not finite after step {snapshot.step}; no checkpoint of it is written"
            if last:
                raise NonFiniteTraining(sentence)
            self.say(f"WARNING: {sentence}")  # the guard takes the run back
            return
        try:
            for file in self.row_files:
                file.settle()
            self.begin_write(snapshot, began)
            if last:
                self.collect(forgive=False)
        except StorageFailure as fault:
            if last:
                raise
            self.forgive(fault)
        self.waited.append(time.perf_counter() - began)

    def begin_write(self, snapshot: Snapshot, began: float) -> None:
        """Copy what a checkpoint holds and hand it to the thread."""
        files: Files = {
            MODEL: pack_tensors(copy_tensors(snapshot.weights, self.memory[0])),
            OPTIMIZER: pack_tensors(copy_tensors(snapshot.averages, self.memory[1])),
            STATE: [to_json(snapshot.state)],
            **self.fixed,
            **snapshot.files,
        }
        facts = {"minigpt": __version__, **snapshot.facts}
        assert self.thread is not None
        self.retry_at = None
        self.writing = self.thread.submit(self.write, snapshot.step, files, facts, began)

    def write(self, step: int, files: Files, facts: Mapping[str, Any], began: float) -> float:
        """Bring a checkpoint to the disk, then remove what is no longer needed (in the thread)."""
        rows = [file.path for file in self.row_files if file.path.exists()]
        write_checkpoint(self.folder, step, files, facts, after=[*rows, self.folder.parent])
        seconds = time.perf_counter() - began
        prune(self.folder, keep_last=self.keep.keep_last, keep_every_steps=self.keep.keep_every_steps)
        return seconds

    def collect(self, *, forgive: bool = True) -> None:
        """Wait for the checkpoint that is being written, if one is, and take note of how it went."""
        writing, self.writing = self.writing, None
        if writing is None:
            return
        try:
            self.until_durable.append(writing.result())
        except StorageFailure as fault:
            if not forgive:
                raise
            self.forgive(fault)
            return
        if self.failures:
            self.say("Checkpoints can be written again.")
        self.failures = 0

    def forgive(self, fault: StorageFailure) -> None:
        """Say that a save failed, and plan the next try.

        Raises:
            StorageFailure: it has failed too often, or the run directory is gone.
        """
        if not self.folder.is_dir():
            raise folder_gone(self.folder.parent) from fault
        if self.failures == len(PAUSES):
            raise fault
        pause = PAUSES[self.failures]
        self.failures += 1
        self.retry_at = time.monotonic() + pause
        self.note("save_failed", reason=str(fault), tries=self.failures)
        tries = len(PAUSES) - self.failures + 1
        self.say(
            f"WARNING: {fault}\nTraining goes on; the next try is at the next step {pause} s from now ({tries} left)."
        )

    def close(self, *, note: bool) -> None:
        """Finish what is being written, which becomes whole.

        Args:
            note: whether to write down how long saves took.
        """
        if self.thread is not None:
            self.thread.shutdown()
        if note and self.until_durable:
            self.note(
                "saved",
                checkpoints=len(self.until_durable),
                seconds_training_waited=round(sum(self.waited), 3),
                seconds_until_durable_at_most=round(max(self.until_durable), 3),
            )
