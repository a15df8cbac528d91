"""Writing checkpoints while training continues.

The weights are copied in main memory, and a thread writes the copy to the disk. Training waits for the copy on a CPU;
on a GPU the copy runs beside the next step, whose update waits for it there. There is one thread and one copy, so a
save waits for the save before it, and the end of a run waits for the last one.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from minigpt import __version__
from minigpt.checkpoint import contents, load
from minigpt.checkpoint.adapters import ADAPTER, ADAPTER_CONFIG, BASE, WORDS, base_hash, config_json, tensors_of
from minigpt.checkpoint.folder import list_checkpoints, prune, require_space, write_checkpoint
from minigpt.config.convert import to_dict
from minigpt.config.schema import RunConfig
from minigpt.faults import NonFiniteTraining, StorageFailure, UserFault
from minigpt.model.gpt import GPT
from minigpt.redact import redact_values
from minigpt.screen import tell
from minigpt.training.state import RunState, TrainingJob

Files = dict[str, bytes]  # contents by file name


class Saving:
    """Writes a run's checkpoints: rank 0 does, after all ranks have gathered sharded weights for it.

    If a save fails, a warning is printed and the next due save tries again; the last save of a run must succeed.
    """

    def __init__(self, job: TrainingJob, gpt: GPT, optimizer: torch.optim.Optimizer, step: int):
        self.job, self.gpt, self.optimizer = job, gpt, optimizer
        config, self.run, self.keep = job.config, job.run, job.config.checkpoint
        plain = redact_values(to_dict(replace(config, run=RunConfig())))
        tokenizer = job.prepared.tokenizer
        more: dict[str, Any] = {"template": tokenizer.template.to_json()} if tokenizer.template else {}
        more |= {"begins_texts": True} if tokenizer.begins_texts else {}
        self.fixed: Files = {
            contents.CONFIG: contents.to_json(plain),
            contents.TOKENIZER: contents.to_json(tokenizer.to_json() | more),
        }
        self.labels: dict[str, Mapping[str, str]] = {}  # metadata of tensor files, by file name
        if config.adapter.name != "none" and self.run.writes:
            self.fixed[ADAPTER_CONFIG] = contents.to_json(config_json(gpt))
            words = {WORDS: tokenizer.hash} if hasattr(gpt.token_embedding, "adapter") else {}  # of new tokens
            self.labels[ADAPTER] = {BASE: base_hash(gpt), **words}
        self.copies: dict[str, dict[str, Tensor]] = {}  # in main memory, by file name
        self.copying: torch.cuda.Stream | None = None  # the stream that copies from a GPU, and the end of its copies
        self.copied: Any = None  # an Event
        if next(gpt.parameters()).is_cuda:
            self.copying, self.copied = torch.cuda.Stream(), torch.cuda.Event()
            # No update may change what is still being copied.
            optimizer.register_step_pre_hook(lambda *_: torch.cuda.current_stream().wait_event(self.copied))
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        self.writing: Future[None] | None = None
        self.durable_step = step or -1  # step of the newest checkpoint on the disk: a run continues from one
        self.written, self.waited = 0, 0.0  # checkpoints; seconds that training waited for them

    def __enter__(self) -> "Saving":
        """Refuse to begin if the checkpoints that will be kept don't fit on the disk."""
        existing = len(list_checkpoints(self.run.checkpoints))
        weights = sum(tensor.nbytes for tensor in self.gpt.state_dict().values())
        copies = 2 + (self.job.config.optimizer.average_fraction > 0)
        averages = copies * sum(tensor.nbytes for tensor in self.gpt.parameters() if tensor.requires_grad)
        size = weights + averages + sum(map(len, self.fixed.values()))
        count = max(self.keep.keep_last + 2 - existing, 1)  # with the best, and a new one before an old one is removed
        if self.run.writes:
            name = f"what this run keeps (checkpoints to come: {count} of {size / 1e6:.1f} MB)"
            require_space(self.run.checkpoints, count * size, name)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.thread.shutdown()
        if error is not None:
            self.collect()  # reports a failed save before the run goes back
        if error is None and self.written:
            self.run.event("saved", checkpoints=self.written, seconds_training_waited=round(self.waited, 3))

    def save(self, state: RunState, val_loss: float | None, *, last: bool) -> None:
        """Copy weights and optimizer averages, and start writing them. With sharded weights, all ranks call this.

        Raises:
            StorageFailure, NonFiniteTraining: it is the last save, which must be durable when this returns.
        """
        began = time.perf_counter()
        self.collect()
        if self.copying is not None:
            self.copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copying) if self.copying else contextlib.nullcontext():  # stream(None) opens CUDA
            # On this stream, too: memory of a temporary tensor is not used again before its copy is made.
            tensors = {**tensors_of(self.gpt), contents.OPTIMIZER: contents.optimizer_tensors(self.optimizer)}
            for name, named in tensors.items():
                contents.copy_tensors(named, self.copies.setdefault(name, {}) if self.run.writes else None)
        if self.copied is not None:
            self.copied.record(self.copying)
        if self.run.writes and state.step != self.durable_step:
            config = self.job.config
            position = asdict(state) | {"tokens": state.step * config.batch_tokens}
            files = {contents.STATE: contents.to_json(position), **pack_states(self.job.callbacks)}
            judged = config.objective.name == "next_token"  # with a reward, the newest weights count as the best
            facts: dict[str, Any] = {"minigpt": __version__, "val_loss": val_loss if judged else None}
            facts |= {"bad_steps": state.bad_steps} if state.bad_steps else {}
            self.writing = self.thread.submit(self._write, state.step, files, facts)
            if last:
                self.collect(last=True)
        self.waited += time.perf_counter() - began

    def _write(self, step: int, files: Files, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint, then remove old ones (in the thread)."""
        if self.copied is not None:
            self.copied.synchronize()  # one wait for all tensors
        for file, tensors in self.copies.items():
            for name, tensor in tensors.items():
                if not np.isfinite(tensor.numpy()).all():  # torch would start threads here that slow down each step
                    fault = f"{name} of {file} is not finite after step {step}; no checkpoint is written"
                    raise NonFiniteTraining(fault)
        packed = {name: contents.pack_tensors(copies, self.labels.get(name)) for name, copies in self.copies.items()}
        rows = [path for path in (self.run.metrics, self.run.samples) if path.exists()]
        write_checkpoint(self.run.checkpoints, step, packed | self.fixed | files, facts, after=[*rows, self.run.path])
        self.durable_step = step
        self.written += 1
        prune(self.run.checkpoints, keep_last=self.keep.keep_last, keep_every_steps=self.keep.keep_every_steps)

    def collect(self, *, last: bool = False, wait: bool = True) -> None:
        """Wait for the checkpoint being written, if any; if it failed, warn, or raise if it is the last."""
        if self.writing is None or not (wait or self.writing.done()):
            return
        writing, self.writing = self.writing, None
        try:
            writing.result()
        except (StorageFailure, NonFiniteTraining) as fault:
            if last:
                raise
            self.run.event("save_failed", reason=str(fault))
            tell(f"WARNING: {fault}\nTraining continues; the next save that is due tries again.")


def pack_states(callbacks: Sequence[L.Callback]) -> Files:
    """Return callbacks.json with the callbacks' non-empty `state_dict()`; no file if all are empty."""
    states = {callback.state_key: state for callback in callbacks if (state := callback.state_dict())}
    try:
        return {contents.CALLBACKS: contents.to_json(states)} if states else {}
    except TypeError as error:
        instead = "In place of Lightning's EarlyStopping use trainer.patience=N, of its ModelCheckpoint checkpoint.*"
        raise UserFault(f"state_dict() of a callback ({', '.join(states)}) must be JSON: {error}. {instead}") from None


def restore_states(callbacks: Sequence[L.Callback], checkpoint: Path) -> None:
    """Restore the state of each callback from a checkpoint."""
    if callbacks and load.lists(checkpoint, contents.CALLBACKS):
        states = load.read_json(checkpoint, contents.CALLBACKS)
        for callback in callbacks:
            if callback.state_key in states:
                callback.load_state_dict(states[callback.state_key])
