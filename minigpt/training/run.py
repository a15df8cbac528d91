"""A training run from config to finished model: begin it, or continue it where it stands."""

import contextlib
import copy
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from minigpt.checkpoint.contents import OPTIMIZER, read_tensors, restore_optimizer
from minigpt.checkpoint.folder import discard_from, latest_usable, list_checkpoints, read_manifest, remove_unfinished
from minigpt.config.convert import flatten, to_dict
from minigpt.config.roles import Change, default_run_dir
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches, document_end
from minigpt.data.order import batch_of_step
from minigpt.data.prepared import Prepared
from minigpt.faults import FINISHED, STOPPED, NonFiniteTraining, StoppedEarly, UserFault
from minigpt.machine.choices import keep_choices, tell_changed_choices
from minigpt.machine.compiling import set_up_torch
from minigpt.machine.hardware import Hardware, find_device, peak_flops
from minigpt.machine.memory import fit_to_memory
from minigpt.machine.plan import describe_plan
from minigpt.machine.sharding import make_layout, shard
from minigpt.model.gpt import GPT
from minigpt.ranks.allocator import keep_freed_memory
from minigpt.ranks.group import Processes, joined, was_asked_to_stop
from minigpt.ranks.output import lasting_output
from minigpt.ranks.signals import Signals, tell
from minigpt.ranks.slurm import PATIENCE_SECONDS, job_id, requeue
from minigpt.rundir.rows import cut_rows_after, keep_history, read_rows
from minigpt.rundir.run_directory import RunDirectory
from minigpt.splitmix import fold
from minigpt.training import run_state
from minigpt.training.ending import close, refuse_nothing_learned, tell_finished
from minigpt.training.grpo import Questions, answered
from minigpt.training.guard import RollBack
from minigpt.training.lightning_engine import build_trainer, quiet_lightning
from minigpt.training.optimizer import build_optimizer
from minigpt.training.saving import restore_states
from minigpt.training.step import LanguageModel, StepEnd


@dataclass(frozen=True)
class Job:
    """What a training needs; it stays the same when the run goes back to an earlier checkpoint."""

    config: TrainConfig
    hardware: Hardware
    prepared: Prepared
    processes: Processes
    run: RunDirectory
    callbacks: Sequence[L.Callback]


def train(config: TrainConfig, callbacks: Sequence[L.Callback] = ()) -> int:
    """Train until the config's end, beginning or continuing the run in `run.dir`.

    Args:
        config: composed and checked.
        callbacks: Lightning callbacks of your own, called after what belongs to a step is done. All hooks of training
            reach them (`on_before_optimizer_step` once a step, `on_train_batch_end` for each micro-batch), and around
            our validations and saves, on_validation_start, _epoch_start, _epoch_end and _end, and on rank 0
            on_save_checkpoint. Not called: hooks of sanity checks, of validation's batches, of test and predict, and
            on_load_checkpoint. `trainer.callback_metrics` holds the last row; `trainer.should_stop = True` ends the
            training with a checkpoint. What `state_dict()` gives is saved if it is JSON or tensors, and handed to
            `load_state_dict()` when the run continues; else a warning says so before the first step.

    Returns:
        0 when the run is finished, 75 when a signal stopped it with a checkpoint.

    Raises:
        UserFault, NoUsableCheckpoint, StorageFailure, NonFiniteTraining: see minigpt.faults.
    """
    for callback in callbacks:
        if isinstance(callback, Checkpoint):
            remedy = "Leave it out, and set checkpoint.every_steps and checkpoint.keep_last"
            raise UserFault(f"callbacks=[{type(callback).__name__}]: a run saves checkpoints of its own. {remedy}")
    path = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
    try:
        with lasting_output(), Signals() as signals:
            signals.raise_if_received()
            if was_asked_to_stop(path):
                return STOPPED
            hardware = find_device(config)
            with joined(config.trainer, hardware.device, signals, path) as processes, queued_again(signals, processes):
                return train_together(path, config, hardware, processes, callbacks)
    except StoppedEarly as early:
        with contextlib.suppress(OSError):  # the screen may be gone
            print(early, file=sys.stderr)
        return early.exit_code


@contextlib.contextmanager
def queued_again(signals: Signals, processes: Processes) -> Iterator[None]:
    """Have SLURM run the job again if a signal ends it before its first step, even during a library's long call."""

    asking, asked = threading.Lock(), list[bool]()

    def ask() -> None:
        if processes.rank == 0:
            with asking:  # another rank's signal comes in a thread of its own, and waits for the answer
                if not asked:
                    asked.append(True)
                    requeue(tell, asked=signals.received == getattr(signal, "SIGUSR1", None))
        elif job_id() and signals.received is not None:
            processes.ask_to_stop(signals.received)
            time.sleep(2 * PATIENCE_SECONDS)  # rank 0 asks, and ends this process when it has

    def before_exit(code: int, sentence: str) -> None:
        if code == STOPPED:
            ask()
        end_at_once(code, sentence)

    end_at_once, signals.before_exit = signals.before_exit, before_exit
    try:
        yield
    except StoppedEarly as early:
        signals.noted_only = True  # nothing may disturb the way out
        if early.exit_code == STOPPED:
            ask()
        raise
    finally:
        signals.before_exit = end_at_once


def train_together(
    path: Path, config: TrainConfig, hardware: Hardware, processes: Processes, callbacks: Sequence[L.Callback]
) -> int:
    """Run one process of a training. Rank 0 writes and prints; the others wait before they read what it writes."""
    processes.require_equal_on_all_ranks("a config", flatten(to_dict(config)))
    hardware = like_everywhere(hardware, processes)
    with processes.rank_zero_first():
        run_state.refuse_changed_run(path, config)
        prepared = run_state.prepare_tokens(config, path)
    processes.require_equal_on_all_ranks("tokens", {"fingerprint": prepared.fingerprint})
    run_state.refuse_unfit_data(config, prepared)
    with RunDirectory(path, writes=processes.rank == 0) as run:
        changes = run_state.refuse_changed_run(path, config)  # again: another process may have begun it meanwhile
        run_state.tell_removed_settings(run)
        return begin_or_continue(Job(config, hardware, prepared, processes, run, callbacks), changes)


def like_everywhere(hardware: Hardware, processes: Processes) -> Hardware:
    """Return the hardware with the least memory that any rank has: choices that follow from it are equal on all.

    Raises:
        UserFault: ranks have different processors or GPUs.
    """
    remedy = "Use hosts of one kind: others round differently, and the ranks' weights would drift apart"
    processes.require_equal_on_all_ranks("hardware", {"name": hardware.name}, remedy=remedy)
    return replace(hardware, memory_bytes=min(map(int, processes.gather(str(hardware.memory_bytes)))))


def begin_or_continue(job: Job, changes: Sequence[Change]) -> int:
    """Train in a run directory that is ours, going back to a checkpoint as often as the guard allows."""
    run = job.run
    if run.writes:
        remove_unfinished(run.checkpoints)
    began_with = [copied(callback.state_dict()) for callback in job.callbacks]
    while True:
        found = latest_usable(run.checkpoints) if run.writes else None  # rank 0 compares every byte for all ranks
        name = job.processes.gather(found.name if found else "")[0].strip()
        checkpoint = run.checkpoints / name if name else None
        manifest = read_manifest(checkpoint)["sha256"] if checkpoint else None
        job.processes.require_equal_on_all_ranks(
            "a checkpoint", {"folder": checkpoint and checkpoint.name, "manifest": manifest}
        )
        state = run_state.read_run_state(checkpoint)
        if limit := run_state.reached_limit(state, job.config):
            refuse_nothing_learned(state, job.config)
            tell_finished(run, state, limit)
            return FINISHED
        try:
            return train_from(job, checkpoint, state, changes)
        except RollBack as request:
            roll_back(job, request)
            for callback, own in zip(job.callbacks, began_with, strict=True):
                if own:  # the earlier checkpoint may hold no state of the callback
                    callback.load_state_dict(copy.deepcopy(own))
            changes = ()


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a callback's state; {} if it can't be copied, as such a state can't be saved either."""
    try:
        return copy.deepcopy(state)
    except Exception:  # of a user's own classes
        return {}


def train_from(job: Job, checkpoint: Path | None, state: run_state.RunState, changes: Sequence[Change]) -> int:
    """Train from a checkpoint, or from the start, to the end of the run or to a stop.

    Args:
        job: the training.
        checkpoint: to continue from, or None.
        state: where it stands.
        changes: of the settings, since the run was trained last.

    Raises:
        RollBack: the guard asks for it.
    """
    config, run, tokenizer = job.config, job.run, job.prepared.tokenizer
    job.processes.signals.raise_if_received()
    saved_choices = rank_zeros(job, lambda: run.read_json("choices.json"))
    choices = keep_choices(saved_choices, config, job.hardware, tokenizer.vocab_size)
    threads = int(job.processes.gather(str(choices.threads))[0])  # hosts may have unlike numbers of cores
    choices = replace(choices, threads=threads)
    job.processes.require_equal_on_all_ranks("choices", asdict(choices))
    set_up_torch(choices, deterministic=config.trainer.deterministic)
    keep_freed_memory()
    torch.manual_seed(fold(config.seed))
    gpt = GPT(config.model, tokenizer.vocab_size, kernel=choices.attention_kernel)
    if choices.precision == "fp64":
        gpt.double()
    layout = make_layout(config.trainer, choices.device)
    if layout is None:
        run_state.restore_weights(gpt, config, checkpoint, tokenizer)
        run_state.put_adapter_on(gpt, config, checkpoint)
    data_facts = run_state.check_fingerprint(run, job.prepared)
    choices, loss_function = fit_to_memory(
        gpt, config, choices, hardware=job.hardware, prepared=job.prepared, processes=job.processes, layout=layout
    )
    if config.objective.name == "grpo":
        Questions(config, choices, tokenizer)  # refuses a micro-batch that holds no whole group
    if layout is not None:  # after the trial for memory, whose model is freed
        shard(gpt, layout, config, choices)
        run_state.restore_weights(gpt, config, checkpoint, tokenizer)
    group = layout.group if layout else None
    optimizer = build_optimizer(config.optimizer, gpt, precision=choices.precision, group=group)
    if checkpoint is not None:  # rank 0 has compared every byte just now
        restore_optimizer(read_tensors(checkpoint / OPTIMIZER), optimizer)
        restore_states(job.callbacks, checkpoint)

    # Nothing was written up to here: a run that is refused stays as it was.
    run.write_text("data.json", json.dumps(data_facts, indent=1) + "\n")
    run.record(config, asdict(choices))
    dropped, kept = 0, list[Path]()
    if run.writes:
        if checkpoint is None:
            kept = keep_history(run.metrics, run.samples, config.checkpoint.every_steps)
        say = partial(tell_damaged_rows, run)
        dropped = cut_rows_after(run.metrics, state.step, say)
        cut_rows_after(run.samples, state.step, say)
    run.event("continued" if checkpoint else "began", step=state.step, rows_written_again=dropped)
    if dropped and checkpoint is None:
        rows = f"its rows{f', kept as {kept[0].name}' if kept else ''}"
        print(f"WARNING: {run.checkpoints} holds no checkpoint: the run begins again, at step 1, without {rows}")
    tell_changed_choices(run, saved_choices, choices)
    tell_changed_settings(run, changes)
    print(f"Run        {run.path}" + (f", continuing after step {state.step:,}" if checkpoint else ""))
    print(
        describe_plan(
            config, choices, job.hardware, gpt=gpt, prepared=job.prepared, total_steps=run_state.steps_of(config)
        )
    )
    module = LanguageModel(gpt, config, choices, optimizer=optimizer, state=state)
    module.compiled_loss, module.layout = loss_function, layout
    tell_new_learning_rate(run, module)
    fit(job, module)
    return close(run, module, job.prepared, job.processes.signals)


def tell_damaged_rows(run: RunDirectory, sentence: str) -> None:
    """Print and write to events.jsonl that a file of rows was damaged."""
    run.event("rows_damaged", reason=sentence)
    print(f"WARNING: {sentence}")


def tell_changed_settings(run: RunDirectory, changes: Sequence[Change]) -> None:
    """Print and write to events.jsonl which settings have changed since the run was trained last."""
    for change in changes:
        run.event("changed", setting=change.key, was=change.was, now=change.now)
        if not change.key.startswith(("logger.", "run.", "experiment", "data.")):
            print(f"Changed setting: {change}")


def tell_new_learning_rate(run: RunDirectory, module: LanguageModel) -> None:
    """Say that the learning rate jumps where a run continues: its schedule is a function of the whole length."""
    rates = [row["lr"] for row in read_rows(run.metrics) if isinstance(row.get("lr"), float)]
    now = module.config.optimizer.lr * module.lr_factor()
    if module.state.step and rates and not 0.8 < now / max(rates[-1], 1e-30) < 1.25:
        print(
            f"Learning rate  {now:.2e} from here on; the last row has {rates[-1]:.2e}. A schedule spans the whole run: "
            f"with another length {module.config.schedule.name} stands elsewhere after step {module.state.step:,}. "
            f"Without a jump: schedule=constant optimizer.lr={rates[-1]:.2e}, or schedule=wsd from a run's start"
        )


def roll_back(job: Job, request: RollBack) -> None:
    """Leave out the bad batches from now on, and drop the checkpoints made among them.

    Raises:
        NonFiniteTraining: the run has gone back too often, or has no checkpoint to go back to.
    """
    run, config = job.run, job.config
    skipped_batches = rank_zeros(job, run.skipped_batches)
    steps = f"steps {request.first_step:,} to {request.last_step:,}"
    if len(skipped_batches) >= config.guard.max_rollbacks:
        run.event("gave_up", first_step=request.first_step, last_step=request.last_step)
        raise NonFiniteTraining(
            f"{steps} were not fit to train on, after {len(skipped_batches)} returns to an earlier checkpoint "
            f"(guard.max_rollbacks={config.guard.max_rollbacks}). The last good checkpoint is kept. Continue it in "
            f"a new run with init.from={run.path} run.dir=NEW_DIR and a lower optimizer.lr "
            f"(now {config.optimizer.lr:g}) or trainer.precision=fp32"
        )
    window = [batch_of_step(step - 1, skipped_batches) for step in (request.first_step, request.last_step)]
    if run.writes:
        # In this order: killed in between, the run meets the bad batches again. The other way round it would go on from
        # a checkpoint made among them as if it had been made without them.
        discard_from(run.checkpoints, request.first_step)
        run.write_text("skipped_batches.json", json.dumps([*skipped_batches, window]) + "\n")
    run.event("rolled_back", first_step=request.first_step, last_step=request.last_step, batches_passed_over=window)
    print(f"Going back: {steps} were bad. Their batches ({window[0]:,} to {window[1]:,}) are left out from now on.")
    job.processes.wait()
    if request.first_step > 1 and not list_checkpoints(run.checkpoints):
        raise NonFiniteTraining(
            f"{steps} were bad, and there is no checkpoint before step {request.first_step:,} to go back to. The same "
            "command begins again at step 1 and leaves their batches out; a smaller checkpoint.every_steps "
            f"(now {config.checkpoint.every_steps}) or guard.max_skips (now {config.guard.max_skips}) loses less"
        )


def rank_zeros(job: Job, read: Callable[[], Any]) -> Any:
    """Return on all ranks what rank 0 reads in the run directory, as JSON.

    Over NFS, another host may not see a file for half a minute after rank 0 has written it.
    """
    return json.loads(job.processes.gather(json.dumps(read() if job.run.writes else None))[0])


def fit(job: Job, module: LanguageModel) -> None:
    """Train with Lightning's Trainer until the run's end or a stop."""
    config, choices, prepared, processes = module.config, module.choices, job.prepared, job.processes
    quiet_lightning()
    peak = peak_flops(job.hardware, choices.precision)
    module.step_end = StepEnd(module, job.run, prepared, processes.signals, peak and peak * choices.devices)
    module.step_end.outputs.pack_callbacks(job.callbacks)  # says before the first step what can't be saved
    skipped_batches = rank_zeros(job, job.run.skipped_batches)
    batches: MicroBatches | Questions = MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        rank=processes.rank,
        world_size=processes.world_size,
        skipped_batches=skipped_batches,
        start_step=module.state.step,
        pin_memory=choices.device == "cuda",
        document_end=document_end(config.data, prepared.tokenizer),
    )
    if config.objective.name == "grpo":
        start = {"rank": processes.rank, "skipped_batches": skipped_batches, "start_step": module.state.step}
        batches = Questions(config, choices, prepared.tokenizer, **start)
        module.answer = partial(answered, config=config, choices=choices, tokenizer=prepared.tokenizer)
    # Lightning counts steps from here on; the run's state has those before.
    remaining = None if module.total_steps is None else module.total_steps - module.state.step
    trainer = build_trainer(config, choices, total_steps=remaining, callbacks=list(job.callbacks))
    with module.step_end.outputs:
        trainer.fit(module, batches)
