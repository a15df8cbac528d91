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
import torch
import torch.nn as nn
from torch import Tensor

from minigpt import __version__
from minigpt.checkpoint import load, pack
from minigpt.checkpoint.adapter import ADAPTER
from minigpt.checkpoint.parts import part_name
from minigpt.checkpoint.store import list_checkpoints, prune, require_space, write_checkpoint
from minigpt.checkpoint.together import ALONE, Writers
from minigpt.config.schema import CheckpointConfig
from minigpt.faults import NonFiniteTraining, StorageFailure
from minigpt.files import is_gone
from minigpt.machine.sharding import Layout
from minigpt.model.parts import local
from minigpt.ranks.group import Processes
from minigpt.rundir.rows import RowFile, folder_gone
from minigpt.training.ending import StopRequest

TENSOR = "__tensor__"  # stands for a tensor in callbacks.json, with its name in callbacks.safetensors
PAUSES = (0, 1, 2, 4, 8, 16, 32, 64, 64, 64)  # seconds from a failed save to the next try; then the run ends

Files = dict[str, Sequence[bytes | memoryview]]  # contents by file name, in parts
Tensors = Mapping[str, Mapping[str, Tensor]]  # by file name and their own


class Saving:
    """Writes checkpoints: rank 0 alone, or all ranks, each its part of sharded weights.

    A save that fails while the run goes on is tried again at a later step; the last one of a run must succeed.

    Args:
        folder: the run's checkpoints/.
        fixed: files that are the same in each checkpoint.
        keep: which checkpoints stay.
        row_files: must be on the disk before a checkpoint is.
        say: prints a line for the user.
        note: writes a row of events.jsonl: (kind, **facts).
    """

    agreed: Writers = ALONE  # for what the ranks do between two steps, in the main thread
    writers: Writers = ALONE  # for what they do during steps, each in its own thread
    layout: Layout | None = None  # of sharded weights
    labels: Mapping[str, Mapping[str, str]] = {}  # metadata in the headers of files of tensors, by file name

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
        self.memory: dict[str, dict[str, Tensor]] = {}  # copies, by file name
        self.thread: ThreadPoolExecutor | None = None
        self.writing: Future[float] | None = None  # gives the seconds until durable
        self.failures = 0  # in a row
        self.retry_at: float | None = None  # time.monotonic()
        self.durable_step = -1  # of the newest checkpoint that was written
        self.waited: list[float] = []  # seconds, each save
        self.until_durable: list[float] = []  # seconds, each save that succeeded

    def share(self, layout: Layout, processes: Processes) -> None:
        """Let all ranks write, each its part of sharded weights."""
        self.layout = layout
        self.agreed = Writers(processes.rank, processes.gather)
        self.writers = Writers(processes.rank, processes.for_thread("saves").gather)

    def start(self, model: nn.Module, step: int, total_steps: int | None) -> None:
        """Start the thread, and refuse to begin when the checkpoints that are kept at one time don't fit on the disk.

        Raises:
            StorageFailure: they don't.
        """
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        weights = sum(tensor.nbytes for tensor in model.state_dict().values())
        averages = 2 * sum(tensor.nbytes for tensor in model.parameters() if tensor.requires_grad)
        size = weights + averages + sum(len(part) for parts in self.fixed.values() for part in parts)
        there, saves = len(list_checkpoints(self.folder)), 1
        if there:
            self.durable_step = step  # where the run continues: a stop before the next step writes it no second time
        if total_steps is not None and self.keep.every_steps:
            saves = max(1, (total_steps - step) // self.keep.every_steps)
        at_once = min(there + saves, max(self.keep.keep_last, 2) + 1)  # a new one is whole before an old one goes
        more = max(at_once - there, 1)
        if self.agreed.rank:
            return
        require_space(
            self.folder, more * size, f"what this run keeps (checkpoints to come: {more} of {size / 1e6:.1f} MB)"
        )

    def retry_is_due(self) -> bool:
        """Return whether a failed save is to be tried again now."""
        return self.retry_at is not None and time.monotonic() >= self.retry_at

    def has_to(self, *, due: bool, last: bool, request: StopRequest | None = None) -> bool:
        """Return whether to save at this step; a failed save waits for its next try, however often saves are due.

        Args:
            due: whether it is time for a save.
            last: whether training ends here.
            request: where all ranks write, what they have agreed on about the last save: their clocks differ.
        """
        if self.writing is not None and self.writing.done():
            self.collect()
        failed, again = self.retry_at is not None, self.retry_is_due()
        if request is not None:
            failed, again = request.save_failed, request.save_again
        return last or again or (due and not failed)

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
        self.collect()
        if step == self.durable_step:
            return
        mine = {name: {key: local(each) for key, each in those.items()} for name, those in tensors.items()}
        broken = next(filter(None, self.agreed.each(lambda: first_broken(mine))), None)
        if broken is not None:
            sentence = f"{broken} is not finite after step {step}; no checkpoint of it is written"
            if last:
                raise NonFiniteTraining(sentence)
            self.say(f"WARNING: {sentence}")  # the guard takes the run back
            return
        try:
            self.agreed.first(self.settle)
            self.begin_write(step, mine, files, facts, began)
            if last:
                self.collect(forgive=False)
        except StorageFailure as fault:
            if last:
                raise
            self.forgive(fault)
        self.waited.append(time.perf_counter() - began)

    def settle(self) -> None:
        """Bring all rows into their files."""
        for file in self.row_files:
            file.settle()

    def begin_write(self, step: int, tensors: Tensors, files: Files, facts: Mapping[str, Any], began: float) -> None:
        """Copy what a checkpoint holds and hand it to the thread."""
        if self.layout is not None:  # of several copies only the first is written, and scalars by its first part
            scalars = self.layout.part == 0
            tensors = {
                part_name(name, self.layout.part, self.layout.parts): {
                    key: each for key, each in those.items() if (each.numel() if each.dim() else scalars)
                }
                for name, those in (tensors.items() if self.layout.copy == 0 else ())
            }
        copies = {name: pack.copy_tensors(each, self.memory.setdefault(name, {})) for name, each in tensors.items()}
        packed: Files = {name: pack.pack_tensors(each, self.labels.get(name)) for name, each in copies.items()}
        packed |= self.fixed | files if self.writers.rank == 0 else {}
        assert self.thread is not None
        self.retry_at = None
        self.writing = self.thread.submit(self.write, step, packed, facts, began)

    def write(self, step: int, files: Files, facts: Mapping[str, Any], began: float) -> float:
        """Bring a checkpoint to the disk, then remove what is no longer needed (in the thread)."""
        rows = [file.path for file in self.row_files if not is_gone(file.path)]
        facts, after = {"minigpt": __version__, **facts}, [*rows, self.folder.parent]
        write_checkpoint(self.folder, step, files, facts, after=after, writers=self.writers)
        self.durable_step, seconds = step, time.perf_counter() - began
        if self.writers.rank == 0:
            prune(self.folder, keep_last=self.keep.keep_last, keep_every_steps=self.keep.keep_every_steps)
        return seconds

    def collect(self, *, forgive: bool = True) -> None:
        """Wait for the checkpoint that is being written, if one is, and note whether it succeeded."""
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
        if is_gone(self.folder):
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
    kinds = {pack.MODEL: "weight", ADAPTER: "weight", pack.OPTIMIZER: "the optimizer's average"}
    for file, kind in kinds.items():
        name = pack.first_non_finite(tensors.get(file, {}))
        if name is not None:
            return f"{kind} {name}"
    return None


def pack_states(callbacks: Sequence[L.Callback]) -> tuple[Files, list[str]]:
    """Return the files that hold the callbacks' `state_dict()`, and a sentence for each that can't be saved."""
    states: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    problems, most = [], load.MAX_BYTES[pack.CALLBACKS]
    for callback in callbacks:
        key, own = callback.state_key, dict(tensors)
        try:
            state = _plain(callback.state_dict(), key, own)
            if len(pack.to_json({**states, key: state})) > most:
                raise TypeError(f"with the states before it more than the {most:,} bytes of JSON that are allowed")
        except (TypeError, ValueError, RecursionError) as reason:
            problems.append(f"the state of the callback {type(callback).__name__} can't be saved ({reason})")
            continue
        if state:
            states[key] = state
            tensors = own
    files: Files = {pack.CALLBACKS: [pack.to_json(states)]} if states else {}
    if tensors:
        files[pack.CALLBACK_TENSORS] = pack.pack_tensors(pack.copy_tensors(tensors, {}))
    return files, problems


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON holds it; its tensors go to `tensors`."""
    if isinstance(value, Tensor):
        if value.dtype not in pack.DTYPES:
            raise TypeError(f"{name} is a tensor of {value.dtype}; wanted one of {', '.join(map(str, pack.DTYPES))}")
        if value.layout != torch.strided:
            raise TypeError(f"{name} is a tensor of {value.layout}; wanted a dense one")
        while name in tensors:  # {"a": {"b": ...}, "a.b": ...}
            name += "."
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, f"{name}.{place}", tensors) for place, part in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}; wanted JSON or tensors")


def restore_states(callbacks: Sequence[L.Callback], checkpoint: Path) -> None:
    """Give each callback the state that a checkpoint holds of it.

    Raises:
        UserFault: the checkpoint's files are damaged.
    """
    if not callbacks or not (checkpoint / pack.CALLBACKS).is_file():
        return
    states, tensors = load.read_json(checkpoint, pack.CALLBACKS), dict[str, Tensor]()
    if (checkpoint / pack.CALLBACK_TENSORS).is_file():
        content = load.read_file(checkpoint, pack.CALLBACK_TENSORS)
        tensors = pack.unpack_tensors(content, str(checkpoint / pack.CALLBACK_TENSORS), floats_only=False)
    try:
        whole = {key: _whole(state, tensors) for key, state in states.items()}
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        reason = f"{pack.CALLBACKS} holds no states of callbacks ({type(error).__name__}: {error})"
        raise load.unusable(checkpoint, reason) from None
    for callback in callbacks:
        if callback.state_key in whole:
            callback.load_state_dict(whole[callback.state_key])


def _whole(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `_plain`; tuples have become lists."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        return {key: _whole(part, tensors) for key, part in value.items()}
    return [_whole(part, tensors) for part in value] if isinstance(value, list) else value
