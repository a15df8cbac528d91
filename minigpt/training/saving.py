"""When checkpoints are made and which of them stay.

Training stands still while the weights are copied in memory; a thread brings the copy to the disk. There is one such
thread and one copy, so a save waits for the one before it, and the end of a run waits for its last.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from minigpt import __version__
from minigpt.checkpoint.pack import (
    CONFIG,
    MODEL,
    OPTIMIZER,
    STATE,
    TOKENIZER,
    copy_tensors,
    first_non_finite,
    optimizer_tensors,
    pack_tensors,
    to_json,
    unpack_optimizer,
)
from minigpt.checkpoint.store import list_checkpoints, prune, require_space, write_checkpoint
from minigpt.config.schema import CheckpointConfig
from minigpt.faults import NonFiniteTraining, StorageFailure
from minigpt.rundir.rows import RowFile, folder_gone
from minigpt.training.boundary import at_step_end, is_due, is_last_step
from minigpt.training.module import LanguageModel

PAUSES = (0, 1, 2, 4, 8, 16, 32, 64, 64, 64)  # seconds from a failed save to the next try; then the run ends


class Saving(L.Callback):
    """Saves every `checkpoint.every_steps`, at a new best validation, when stopped, and at the end (rank 0 only).

    The last of the callbacks: what a step brings (validation, rows) is on the disk before its checkpoint. A save that
    fails while the run goes on is tried again at a later step; the last one of a run must succeed.

    Args:
        folder: the run's checkpoints/.
        fixed: config.json and tokenizer.json as plain data, the same in each checkpoint.
        optimizer_state: bytes of optimizer.safetensors to continue from, or None.
        row_files: must be on the disk before a checkpoint is.
        say: for the eyes of the user.
        note: for events.jsonl: (kind, **facts).
    """

    def __init__(
        self,
        folder: Path,
        fixed: dict[str, Any],
        optimizer_state: bytes | None,
        *,
        row_files: Sequence[RowFile] = (),
        say: Callable[[str], object] = print,
        note: Callable[..., object] = lambda kind, **facts: None,
    ):
        self.folder = folder
        self.fixed = {CONFIG: [to_json(fixed["config"])], TOKENIZER: [to_json(fixed["tokenizer"])]}
        self.optimizer_state = optimizer_state
        self.row_files = row_files
        self.say = say
        self.note = note
        self.memory: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})  # copies of weights, of averages
        self.thread: ThreadPoolExecutor | None = None
        self.writing: Future[float] | None = None  # gives the seconds until durable
        self.failures = 0  # in a row
        self.retry_at: float | None = None  # time.monotonic()
        self.stood_still: list[float] = []  # seconds, each save
        self.until_durable: list[float] = []  # seconds, each save that succeeded

    def on_train_start(self, trainer: L.Trainer, pl_module: LanguageModel) -> None:
        if self.optimizer_state is not None:
            unpack_optimizer(self.optimizer_state, trainer.optimizers[0])
            self.optimizer_state = None
        if trainer.is_global_zero:
            self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
            self.require_space(pl_module)

    def require_space(self, module: LanguageModel) -> None:
        """Refuse to begin when the checkpoints that this run keeps at one time don't fit on the disk.

        Raises:
            StorageFailure: they don't.
        """
        keep, position = module.config.checkpoint, module.position
        weights = sum(tensor.nbytes for tensor in module.gpt.state_dict().values())
        size = 3 * weights + sum(len(part) for parts in self.fixed.values() for part in parts)
        there = len(list_checkpoints(self.folder))
        saves = 1
        if module.total_steps is not None and keep.every_steps:
            saves = max(1, (module.total_steps - position.step) // keep.every_steps)
        at_once = min(there + saves, max(keep.keep_last, 2) + 1)  # a new one is whole before an old one goes
        more = max(at_once - there, 1)
        require_space(
            self.folder, more * size, f"what this run keeps (checkpoints to come: {more} of {size / 1e6:.1f} MB)"
        )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not (trainer.is_global_zero and at_step_end(trainer, batch_idx)):
            return
        if self.writing is not None and self.writing.done():
            self.collect()
        position = pl_module.position
        improved = "val/loss" in pl_module.row and position.best_step == position.step
        due = improved or is_due(pl_module, pl_module.config.checkpoint.every_steps)
        again = self.retry_at is not None and time.monotonic() >= self.retry_at
        last = bool(pl_module.stop_reason) or is_last_step(pl_module)
        if (due and self.retry_at is None) or again or last:  # a failed save waits for its next try
            with pl_module.clock.paused():
                began = time.perf_counter()
                self.save(trainer, pl_module, last=last)
                self.stood_still.append(time.perf_counter() - began)

    def save(self, trainer: L.Trainer, module: LanguageModel, *, last: bool) -> None:
        """Copy this step's state and have it written; of a run's last step, wait until it is durable.

        Raises:
            StorageFailure: it is the last, or failed too often, or the run directory is gone.
        """
        began = time.perf_counter()
        self.collect()
        try:
            for file in self.row_files:
                file.settle()
            self.begin_write(trainer, module, began)
            if last:
                self.collect(forgive=False)
        except StorageFailure as fault:
            if last:
                raise
            self.forgive(fault)

    def begin_write(self, trainer: L.Trainer, module: LanguageModel, began: float) -> None:
        """Copy what a checkpoint holds and hand it to the thread."""
        weights, averages = module.gpt.state_dict(), optimizer_tensors(trainer.optimizers[0])
        broken = first_non_finite(weights)
        if broken is not None:
            raise NonFiniteTraining(f"weight {broken} is not finite; no checkpoint of it is written")
        state = asdict(module.position) | {
            "seconds": module.clock.seconds if module.config.trainer.max_minutes else 0.0,
            "tokens": module.position.step * module.config.batch_tokens,
        }
        files: dict[str, Sequence[bytes | memoryview]] = {
            MODEL: pack_tensors(copy_tensors(weights, self.memory[0])),
            OPTIMIZER: pack_tensors(copy_tensors(averages, self.memory[1])),
            STATE: [to_json(state)],
            **self.fixed,
        }
        facts = {"minigpt": __version__, "val_loss": module.row.get("val/loss")}
        assert self.thread is not None
        self.retry_at = None
        self.writing = self.thread.submit(
            self.write, module.position.step, files, facts, keep=module.config.checkpoint, began=began
        )

    def write(
        self,
        step: int,
        files: Mapping[str, Sequence[bytes | memoryview]],
        facts: Mapping[str, Any],
        *,
        keep: CheckpointConfig,
        began: float,
    ) -> float:
        """Bring a checkpoint to the disk, then remove what is no longer needed (in the thread)."""
        rows = [file.path for file in self.row_files if file.path.exists()]
        write_checkpoint(self.folder, step, files, facts, after=[*rows, self.folder.parent])
        seconds = time.perf_counter() - began
        prune(self.folder, keep_last=keep.keep_last, keep_every_steps=keep.keep_every_steps)
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
            raise StorageFailure(folder_gone(self.folder.parent)) from fault
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

    def on_train_end(self, trainer: L.Trainer, pl_module: LanguageModel) -> None:
        if self.thread is not None:
            self.thread.shutdown()
        if self.until_durable:
            self.note(
                "saved",
                checkpoints=len(self.until_durable),
                seconds_training_stood_still=round(sum(self.stood_still), 3),
                seconds_until_durable_at_most=round(max(self.until_durable), 3),
            )

    def on_exception(self, trainer: L.Trainer, pl_module: LanguageModel, exception: BaseException) -> None:
        if self.thread is not None:
            self.thread.shutdown()  # what was being written becomes whole: it is good
