"""A training run from config to finished model: begin it, or continue it where it stands."""

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import lightning as L
import torch

from minigpt.checkpoint.pack import CONFIG, TOKENIZER, to_json
from minigpt.checkpoint.store import MANIFEST, discard_from, latest_usable, sweep_unfinished
from minigpt.config.convert import flatten, to_dict
from minigpt.config.roles import default_run_dir
from minigpt.config.schema import RunConfig, TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.order import batch_of_step
from minigpt.data.prepare import Prepared
from minigpt.faults import FINISHED, STOPPED, NonFiniteTraining, StoppedEarly
from minigpt.machine.choices import keep_choices, tell_changed_choices
from minigpt.machine.compiling import compiled_loss
from minigpt.machine.hardware import Hardware, find_device, peak_flops
from minigpt.machine.memory import first_batch, fit_to_memory, keep_freed_memory
from minigpt.machine.plan import describe_plan
from minigpt.model.counting import flops_per_token
from minigpt.model.gpt import GPT
from minigpt.process.group import Processes, joined, was_asked_to_stop
from minigpt.process.output import lasting_output
from minigpt.process.signals import Signals
from minigpt.redact import redact_values
from minigpt.rundir.remote_logger import RemoteLogger
from minigpt.rundir.rows import RowFile, cut_rows_after
from minigpt.rundir.run_directory import RunDirectory
from minigpt.rundir.tensorboard import TensorBoard
from minigpt.training.callbacks import pack_states, restore_states
from minigpt.training.ending import close, tell_finished
from minigpt.training.guard import RollBack
from minigpt.training.lightning_engine import build_trainer, quiet_lightning
from minigpt.training.measure import Meter, Validation
from minigpt.training.progress import Screen
from minigpt.training.restoring import (
    check_fingerprint,
    prepare_tokens,
    read_run_state,
    refuse_changed_run,
    refuse_unfit_data,
    restore_weights,
)
from minigpt.training.saving import Saving
from minigpt.training.seeding import fold
from minigpt.training.state import reached_limit
from minigpt.training.step import LanguageModel, StepEnd
from minigpt.training.stopping import StopRequests


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
    path = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
    try:
        with lasting_output(), Signals() as signals:
            signals.raise_if_received()
            if was_asked_to_stop(path):
                return STOPPED
            hardware = find_device(config)
            with joined(config.trainer, hardware.device, signals) as processes:
                return train_together(path, config, hardware, processes, callbacks)
    except StoppedEarly as early:
        with contextlib.suppress(OSError):  # the screen may be gone
            print(early, file=sys.stderr)
        return early.exit_code


def train_together(
    path: Path, config: TrainConfig, hardware: Hardware, processes: Processes, callbacks: Sequence[L.Callback]
) -> int:
    """What each process of a run does. Rank 0 writes and prints; where others read what it writes, they wait for it."""
    processes.require_equal_on_all_ranks("a config", flatten(to_dict(config)))
    with processes.rank_zero_first():
        refuse_changed_run(path, config)
        prepared = prepare_tokens(config)
    processes.require_equal_on_all_ranks("tokens", {"fingerprint": prepared.fingerprint})
    refuse_unfit_data(config, prepared)
    with RunDirectory(path, writes=processes.rank == 0) as run:
        return begin_or_continue(run, config, hardware, prepared, processes=processes, callbacks=callbacks)


def begin_or_continue(
    run: RunDirectory,
    config: TrainConfig,
    hardware: Hardware,
    prepared: Prepared,
    *,
    processes: Processes,
    callbacks: Sequence[L.Callback],
) -> int:
    """Train in a run directory that is ours, going back to a checkpoint as often as the guard allows."""
    if run.writes:
        sweep_unfinished(run.checkpoints)
    while True:
        with processes.rank_zero_first():  # rank 0 sets damaged ones aside
            checkpoint = latest_usable(run.checkpoints)
        manifest = hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest() if checkpoint else None
        processes.require_equal_on_all_ranks(
            "a checkpoint", {"folder": checkpoint and checkpoint.name, "manifest": manifest}
        )
        total_steps = steps_of(config)
        state = read_run_state(checkpoint)
        if limit := reached_limit(state, total_steps, config):
            tell_finished(run, state, limit)
            return FINISHED
        try:
            return train_from(
                run,
                config,
                checkpoint,
                hardware=hardware,
                prepared=prepared,
                processes=processes,
                callbacks=callbacks,
            )
        except RollBack as request:
            roll_back(run, config, request, processes)


def train_from(
    run: RunDirectory,
    config: TrainConfig,
    checkpoint: Path | None,
    *,
    hardware: Hardware,
    prepared: Prepared,
    processes: Processes,
    callbacks: Sequence[L.Callback],
) -> int:
    """Train from a checkpoint, or from the start, to the end of the run or to a stop.

    Raises:
        RollBack: the guard asks for it.
    """
    processes.signals.raise_if_received()
    state = read_run_state(checkpoint)
    saved_choices = run.read_json("choices.json")
    choices = keep_choices(saved_choices, config, hardware, prepared.tokenizer.vocab_size)
    processes.require_equal_on_all_ranks("choices", asdict(choices))
    torch.set_num_threads(choices.threads)
    torch.set_float32_matmul_precision(choices.float32_products)
    keep_freed_memory()
    torch.manual_seed(fold(config.seed))
    gpt = GPT(config.model, prepared.tokenizer.vocab_size, kernel=choices.attention_kernel)
    if choices.precision == "fp64":
        gpt.double()
    optimizer_state = restore_weights(gpt, config, checkpoint, prepared.tokenizer)
    check_fingerprint(run, prepared)
    choices = fit_to_memory(gpt, config, choices, prepared=prepared, processes=processes)
    run.record(config, asdict(choices))
    dropped = 0
    if run.writes:
        say = partial(tell_damaged_rows, run)
        dropped = cut_rows_after(run.metrics, state.step, say)
        cut_rows_after(run.samples, state.step, say)
    run.event("continued" if checkpoint else "began", step=state.step, rows_written_again=dropped)

    tell_changed_choices(run, saved_choices, choices)
    print(f"Run        {run.path}" + (f", continuing after step {state.step:,}" if checkpoint else ""))
    total_steps = steps_of(config)
    print(describe_plan(config, choices, hardware, model=gpt, prepared=prepared, total_steps=total_steps))
    module = LanguageModel(gpt, config, choices, total_steps=total_steps, state=state, optimizer_state=optimizer_state)
    if checkpoint is not None:
        restore_states(callbacks, checkpoint)
    for problem in pack_states(callbacks)[1]:
        print(f"WARNING: {problem}: it begins anew when the run continues")
    fit(run, module, prepared, hardware, processes=processes, callbacks=callbacks)
    return close(run, module)


def roll_back(run: RunDirectory, config: TrainConfig, request: RollBack, processes: Processes) -> None:
    """Pass over the bad batches from now on, and drop the checkpoints made among them.

    Raises:
        NonFiniteTraining: the run has gone back too often.
    """
    skipped_batches = run.skipped_batches()
    processes.wait()  # all have read it
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
        run.write_text("skipped_batches.json", json.dumps([*skipped_batches, window]) + "\n")
        discard_from(run.checkpoints, request.first_step)
    run.event("rolled_back", first_step=request.first_step, last_step=request.last_step, batches_passed_over=window)
    print(f"Going back: {steps} were bad. Their batches ({window[0]:,} to {window[1]:,}) are passed over from now on.")


def steps_of(config: TrainConfig) -> int | None:
    """Optimizer steps of the run; None when only time limits it. A step is never cut, so max_tokens rounds up."""
    if config.trainer.max_tokens is not None:
        return math.ceil(config.trainer.max_tokens / config.batch_tokens)
    return config.trainer.max_steps


def fit(
    run: RunDirectory,
    module: LanguageModel,
    prepared: Prepared,
    hardware: Hardware,
    *,
    processes: Processes,
    callbacks: Sequence[L.Callback],
) -> None:
    """Train with Lightning's Trainer until the run's end or a stop."""
    config, choices, start_step = module.config, module.choices, module.state.step
    quiet_lightning()
    module.step_end = step_end(run, module, prepared, hardware, signals=processes.signals)
    batches = MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        rank=processes.rank,
        world_size=processes.world_size,
        skipped_batches=run.skipped_batches(),
        start_step=start_step,
        pin_memory=choices.device == "cuda",
    )
    if choices.compile:
        compile_loss(module, prepared)
    # Lightning counts steps from here on; the run's state has those before.
    remaining = None if module.total_steps is None else module.total_steps - start_step
    trainer = build_trainer(config, choices, total_steps=remaining, callbacks=list(callbacks))
    try:
        trainer.fit(module, batches)
    except BaseException as error:
        module.step_end.close(error)
        raise
    module.step_end.close(None)


def step_end(
    run: RunDirectory, module: LanguageModel, prepared: Prepared, hardware: Hardware, *, signals: Signals
) -> StepEnd:
    """Put together what happens at the end of each step."""
    config, tokenizer = module.config, prepared.tokenizer
    screen = Screen(config, module.total_steps)
    rows, samples = (RowFile(path, screen.print) for path in (run.metrics, run.samples))
    plain = redact_values(to_dict(replace(config, run=RunConfig())))
    peak = peak_flops(hardware, module.choices.precision)
    flops = flops_per_token(config.model, tokenizer.vocab_size) if peak else 0.0
    first_token_bytes = len(tokenizer.token_bytes(int(prepared.val.tokens(0, 1)[0])))
    remote: RemoteLogger | TensorBoard | None = None
    if config.logger.name == "tensorboard" and run.writes:
        remote = TensorBoard(run.path, step=module.state.step, say=screen.print)
    elif config.logger.name == "wandb" and run.writes:
        remote = RemoteLogger(config.logger, run.path, settings=to_dict(config), say=screen.print)
    return StepEnd(
        run=run,
        requests=StopRequests(signals, run.path / "STOP" if run.writes else None, config.trainer.max_minutes),
        meter=Meter(config.batch_tokens, flops, peak and peak * module.choices.devices),
        validation=Validation(prepared.val, first_token_bytes, config, module.choices),
        rows=rows,
        samples=samples,
        tokenizer=tokenizer,
        screen=screen,
        saving=Saving(
            run.checkpoints,
            {CONFIG: [to_json(plain)], TOKENIZER: [to_json(tokenizer.to_json())]},
            config.checkpoint,
            row_files=(rows, samples),
            say=screen.print,
            note=run.event,
        ),
        remote=remote,
    )


def tell_damaged_rows(run: RunDirectory, sentence: str) -> None:
    """Say and note that a file of rows was damaged."""
    run.event("rows_damaged", reason=sentence)
    print(f"WARNING: {sentence}")


def compile_loss(module: LanguageModel, prepared: Prepared) -> None:
    """Compile the training step; the try runs on the run's first windows."""
    choices, say = module.choices, module.step_end.screen.print
    tokens, targets = first_batch(prepared, module.config, choices.device, choices.micro_batch)
    say("Compiling the training step (once; up to a minute or two) ...")
    module.gpt.to(choices.device).train()
    module.loss_function = compiled_loss(module.gpt, tokens, targets, precision=choices.precision, say=say)
