"""When checkpoints are made and which of them stay.

Training stands still while the weights are copied in memory; a thread brings the copy to the disk. There is one such
thread and one copy, so a save waits for the one before it, and the end of a run waits for its last.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning as L
import torch.nn as nn
from torch import Tensor

from minigpt import __version__
from minigpt.checkpoint import contents, load
from minigpt.checkpoint.adapters import ADAPTER
from minigpt.checkpoint.folder import list_checkpoints, prune, require_space, write_checkpoint
from minigpt.config.schema import CheckpointConfig
from minigpt.faults import NonFiniteTraining, StorageFailure
from minigpt.rundir.rows import RowFile, folder_gone

Files = dict[str, bytes]  # contents by file name
Tensors = Mapping[str, Mapping[str, Tensor]]  # by file name and their own


class Saving:
    """Writes checkpoints: rank 0 alone; if weights are sharded, the other ranks only give it their shards.

    After a save that failed, the next one that is due tries again; the last one of a run must succeed.

    Args:
        folder: the run's checkpoints/.
        fixed: files that are the same in each checkpoint.
        keep: which checkpoints stay.
        writes: whether this rank writes.
        row_files: must be on the disk before a checkpoint is.
        say: prints a line for the user.
        note: writes a row of events.jsonl: (kind, **facts).
    """

    labels: Mapping[str, Mapping[str, str]] = {}  # metadata in the headers of files of tensors, by file name

    def __init__(
        self,
        folder: Path,
        fixed: Files,
        keep: CheckpointConfig,
        *,
        writes: bool = True,
        row_files: Sequence[RowFile] = (),
        say: Callable[[str], object] = print,
        note: Callable[..., object] = lambda kind, **facts: None,
    ):
        self.folder = folder
        self.fixed = fixed
        self.keep = keep
        self.writes = writes
        self.row_files = row_files
        self.say = say
        self.note = note
        self.memory: dict[str, dict[str, Tensor]] = {}  # copies, by file name
        self.thread: ThreadPoolExecutor | None = None
        self.writing: Future[float] | None = None  # gives the seconds until durable
        self.durable_step = -1  # of the newest checkpoint that was written
        self.waited: list[float] = []  # seconds, each save
        self.until_durable: list[float] = []  # seconds, each save that succeeded

    def start(self, model: nn.Module, step: int, total_steps: int | None) -> None:
        """Start the thread, and refuse to begin when the checkpoints that are kept at one time don't fit on the disk.

        Raises:
            StorageFailure: they don't.
        """
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        weights = sum(tensor.nbytes for tensor in model.state_dict().values())
        averages = 2 * sum(tensor.nbytes for tensor in model.parameters() if tensor.requires_grad)
        size = weights + averages + sum(map(len, self.fixed.values()))
        there, saves = len(list_checkpoints(self.folder)), 1
        if there:
            self.durable_step = step  # where the run continues: a stop before the next step writes it no second time
        if total_steps is not None and self.keep.every_steps:
            saves = max(1, (total_steps - step) // self.keep.every_steps)
        at_once = min(there + saves, max(self.keep.keep_last, 2) + 1)  # a new one is whole before an old one goes
        more = max(at_once - there, 1)
        if not self.writes:
            return
        require_space(
            self.folder, more * size, f"what this run keeps (checkpoints to come: {more} of {size / 1e6:.1f} MB)"
        )

    def save(self, step: int, tensors: Tensors, files: Files, facts: Mapping[str, Any], *, last: bool) -> None:
        """Copy a run's state and have it written; at the last step, wait until it is durable.

        Args:
            step: optimizer steps done.
            tensors: weights and averages, by file name.
            files: further files.
            facts: further entries of the manifest.
            last: whether training ends here.

        Raises:
            StorageFailure: the last save failed, or a save has failed too often, or the run directory is gone.
            NonFiniteTraining: it is the last save, and a weight or an average is not finite.
        """
        began = time.perf_counter()
        memory = self.memory if self.writes else None
        self.collect()
        copies = {
            name: contents.copy_tensors(named, None if memory is None else memory.setdefault(name, {}))
            for name, named in tensors.items()
        }
        if not self.writes or step == self.durable_step:
            return
        if (broken := first_broken(copies)) is not None:
            sentence = f"{broken} is not finite after step {step}; no checkpoint of it is written"
            if last:
                raise NonFiniteTraining(sentence)
            self.say(f"WARNING: {sentence}")  # the guard takes the run back
            return
        try:
            for file in self.row_files:
                file.settle()
            assert self.thread is not None
            self.writing = self.thread.submit(self.write, step, copies, self.fixed | files, facts, began)
            if last:
                self.collect(last=True)
        except StorageFailure as fault:
            if last:
                raise
            self.warn(fault)
        self.waited.append(time.perf_counter() - began)

    def write(self, step: int, tensors: Tensors, files: Files, facts: Mapping[str, Any], began: float) -> float:
        """Bring a checkpoint to the disk, then remove what is no longer needed (in the thread)."""
        rows = [file.path for file in self.row_files if file.path.exists()]
        facts, after = {"minigpt": __version__, **facts}, [*rows, self.folder.parent]
        packed = {name: contents.pack_tensors(named, self.labels.get(name)) for name, named in tensors.items()}
        write_checkpoint(self.folder, step, packed | files, facts, after=after)
        self.durable_step, seconds = step, time.perf_counter() - began
        prune(self.folder, keep_last=self.keep.keep_last, keep_every_steps=self.keep.keep_every_steps)
        return seconds

    def collect(self, *, last: bool = False) -> None:
        """Wait for the checkpoint that is being written, if one is; only the last must succeed."""
        writing, self.writing = self.writing, None
        if writing is None:
            return
        try:
            self.until_durable.append(writing.result())
        except StorageFailure as fault:
            if last:
                raise
            self.warn(fault)

    def warn(self, fault: StorageFailure) -> None:
        """Say that a save failed; the next one that is due tries again. Without its run directory, a run ends."""
        if not self.folder.is_dir():
            raise folder_gone(self.folder.parent) from fault
        self.note("save_failed", reason=str(fault))
        self.say(f"WARNING: {fault}\nTraining goes on; the next checkpoint that is due is tried again.")

    def close(self, *, note: bool) -> None:
        """Wait until the checkpoint that is being written is whole.

        Args:
            note: whether to write to events.jsonl how long saves took.
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


def first_broken(tensors: Tensors) -> str | None:
    """Return which weight, or else which average of the optimizer, is not finite; None if all are finite."""
    kinds = {contents.MODEL: "weight", ADAPTER: "weight", contents.OPTIMIZER: "the optimizer's average"}
    for file, kind in kinds.items():
        name = contents.first_non_finite(tensors.get(file, {}))
        if name is not None:
            return f"{kind} {name}"
    return None


def pack_states(callbacks: Sequence[L.Callback]) -> tuple[Files, list[str]]:
    """Return the file that holds the callbacks' `state_dict()`, and a sentence for each that is not JSON."""
    states: dict[str, Any] = {}
    problems = []
    for callback in callbacks:
        try:
            if state := callback.state_dict():
                contents.to_json(state)
                states[callback.state_key] = state
        except (TypeError, ValueError, RecursionError) as reason:
            problems.append(f"the state of the callback {type(callback).__name__} can't be saved ({reason})")
    return {contents.CALLBACKS: contents.to_json(states)} if states else {}, problems


def restore_states(callbacks: Sequence[L.Callback], checkpoint: Path) -> None:
    """Give each callback the state that a checkpoint holds of it."""
    if callbacks and load.lists(checkpoint, contents.CALLBACKS):
        states = load.read_json(checkpoint, contents.CALLBACKS)
        for callback in callbacks:
            if callback.state_key in states:
                callback.load_state_dict(states[callback.state_key])
