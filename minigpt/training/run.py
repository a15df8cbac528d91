"""A training run from config to finished model: begin it, or continue it where it stands."""

import contextlib
import hashlib
import json
import math
import os
import sys
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from minigpt.checkpoint.load import (
    find_checkpoint,
    load_weights,
    read_file,
    read_state,
    read_tensors,
    read_tokenizer,
    unusable,
)
from minigpt.checkpoint.pack import MODEL, OPTIMIZER, STATE
from minigpt.checkpoint.store import MANIFEST, discard_from, latest_usable, list_checkpoints, step_of, sweep_unfinished
from minigpt.config.convert import default_run_dir, flatten, misfit, shown, to_dict
from minigpt.config.schema import RunConfig, TrainConfig
from minigpt.data.module import MicroBatches, TokenData
from minigpt.data.order import batch_of_step, check_length
from minigpt.data.prepare import Prepared, prepare
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import FINISHED, STOPPED, NonFiniteTraining, StoppedEarly, UserFault
from minigpt.model.gpt import GPT
from minigpt.redact import redact_values
from minigpt.report.page import write_report
from minigpt.sampling.prompt import encode_prompt
from minigpt.training.boundary import end_of
from minigpt.training.compiling import compiled_loss
from minigpt.training.guard import RollBack
from minigpt.training.hardware import Choices, Hardware, choose, fault_in_choices, flops_per_token, peak_flops, probe
from minigpt.training.live_samples import LiveSamples
from minigpt.training.memory import fit_micro_batch
from minigpt.training.metrics import Measure, MetricsFile, RowFile, cut_rows_after, read_rows
from minigpt.training.module import LanguageModel, Position
from minigpt.training.output import lasting_output
from minigpt.training.plan import describe_plan
from minigpt.training.processes import Processes, joined, mark_stopped, was_asked_to_stop
from minigpt.training.progress import Progress
from minigpt.training.remote_logger import RemoteLogger
from minigpt.training.run_directory import RunDirectory, differences
from minigpt.training.saving import Saving
from minigpt.training.seeding import SeedEachBatch, fold
from minigpt.training.signals import Signals
from minigpt.training.stopping import Stopping, requeue_slurm_job
from minigpt.training.trainer import build_trainer, quiet_lightning
from minigpt.training.validation import Validation


def train(config: TrainConfig) -> int:
    """Train until the config's end, beginning or continuing the run in `run.dir`.

    Args:
        config: composed and checked.

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
                return train_together(path, config, hardware, processes)
    except StoppedEarly as early:
        with contextlib.suppress(OSError):  # the screen may be gone
            print(early, file=sys.stderr)
        return early.exit_code


def train_together(path: Path, config: TrainConfig, hardware: Hardware, processes: Processes) -> int:
    """What each process of a run does. Rank 0 writes and prints; where others read what it writes, they wait for it."""
    processes.agree("a config", flatten(to_dict(config)))
    with processes.one_first():
        refuse_changed_run(path, config)
        prepared = prepare(config.data, config.tokenizer)
    processes.agree("tokens", {"fingerprint": prepared.fingerprint})
    refuse_unfit_data(config, prepared)
    with RunDirectory(path, writes=processes.rank == 0) as run:
        return begin_or_continue(run, config, hardware, prepared, processes)


def begin_or_continue(
    run: RunDirectory, config: TrainConfig, hardware: Hardware, prepared: Prepared, processes: Processes
) -> int:
    """Train in a run directory that is ours, going back to a checkpoint as often as the guard allows."""
    if run.writes:
        sweep_unfinished(run.checkpoints)
    while True:
        with processes.one_first():  # rank 0 sets damaged ones aside
            checkpoint = latest_usable(run.checkpoints)
        manifest = hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest() if checkpoint else None
        processes.agree("a checkpoint", {"folder": checkpoint and checkpoint.name, "manifest": manifest})
        total_steps = steps_of(config)
        position = read_position(checkpoint)
        if limit := end_of(position, total_steps, config):
            tell_finished(run, position, limit)
            return FINISHED
        try:
            return train_from(run, config, checkpoint, hardware=hardware, prepared=prepared, processes=processes)
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
) -> int:
    """Train from a checkpoint, or from the start, to the end of the run or to a stop.

    Raises:
        RollBack: the guard asks for it.
    """
    processes.signals.raise_if_received()
    position = read_position(checkpoint)
    choices = settle_choices(run, config, hardware, prepared)
    processes.agree("choices", asdict(choices))
    torch.set_num_threads(choices.threads)
    torch.manual_seed(fold(config.seed))
    gpt = GPT(config.model, prepared.tokenizer.vocab_size, kernel=choices.attention_kernel)
    if choices.precision == "fp64":
        gpt.double()
    optimizer_state = restore_weights(gpt, config, checkpoint, prepared.tokenizer)
    check_fingerprint(run, prepared)
    choices = settle_memory(gpt, config, choices, prepared=prepared, processes=processes)
    run.record(config, choices)
    dropped = 0
    if run.writes:
        dropped = cut_rows_after(run.metrics, position.step)
        cut_rows_after(run.samples, position.step)
    run.event("continued" if checkpoint else "began", step=position.step, rows_written_again=dropped)

    print(f"Run        {run.path}" + (f", continuing after step {position.step:,}" if checkpoint else ""))
    total_steps = steps_of(config)
    print(describe_plan(config, choices, hardware, model=gpt, prepared=prepared, total_steps=total_steps))
    module = LanguageModel(gpt, config, choices, total_steps=total_steps, position=position)
    fit(run, module, prepared, hardware, optimizer_state=optimizer_state, signals=processes.signals)
    return close(run, module, prepared)


def roll_back(run: RunDirectory, config: TrainConfig, request: RollBack, processes: Processes) -> None:
    """Pass over the bad batches from now on, and drop the checkpoints made among them.

    Raises:
        NonFiniteTraining: the run has gone back too often.
    """
    passed_over = run.passed_over()
    processes.wait()  # all have read it
    steps = f"steps {request.first_step:,} to {request.last_step:,}"
    if len(passed_over) >= config.guard.max_rollbacks:
        run.event("gave_up", first_step=request.first_step, last_step=request.last_step)
        raise NonFiniteTraining(
            f"{steps} were not fit to train on, after {len(passed_over)} returns to an earlier checkpoint "
            f"(guard.max_rollbacks={config.guard.max_rollbacks}). The last good checkpoint is kept. Continue it in "
            f"a new run with init.from={run.path} run.dir=NEW_DIR and a lower optimizer.lr "
            f"(now {config.optimizer.lr:g}) or trainer.precision=fp32"
        )
    window = [batch_of_step(step - 1, passed_over) for step in (request.first_step, request.last_step)]
    if run.writes:
        run.write_text("passed_over.json", json.dumps([*passed_over, window]) + "\n")
        discard_from(run.checkpoints, request.first_step)
    run.event("rolled_back", first_step=request.first_step, last_step=request.last_step, batches_passed_over=window)
    print(f"Going back: {steps} were bad. Their batches ({window[0]:,} to {window[1]:,}) are passed over from now on.")


def steps_of(config: TrainConfig) -> int | None:
    """Optimizer steps of the run; None when only time limits it. A step is never cut, so max_tokens rounds up."""
    if config.trainer.max_tokens is not None:
        return math.ceil(config.trainer.max_tokens / config.batch_tokens)
    return config.trainer.max_steps


def refuse_changed_run(path: Path, config: TrainConfig) -> None:
    """A run continues with the config it was begun with; what may change is in run_directory.CHANGEABLE."""
    saved = RunDirectory(path, writes=False).saved_config()
    if saved is None:
        return
    forbidden, allowed = differences(saved, config)
    if forbidden:
        raise UserFault(
            f"run.dir={path} was begun with another config; continuing would mix two runs:\n"
            + "\n".join(f"  {line}" for line in forbidden)
            + "\nTake these values back, or start another run with run.dir=NEW_DIR "
            + (f"(init.from={path} starts it from these weights)" if list_checkpoints(path / "checkpoints") else "")
        )
    for line in allowed:
        if not line.startswith(("logger.", "run.", "experiment", "data.")):
            print(f"Changed setting: {line}")


def refuse_unfit_data(config: TrainConfig, prepared: Prepared) -> None:
    """Name what the tokens are too few or of another alphabet for, before anything is written."""
    check_length("train", len(prepared.train), config.model.block_size)
    if len(prepared.val) < 2:
        raise UserFault(
            f"the val split has {len(prepared.val)} token, and predicting one takes at least 2. Use more text or a "
            f"larger data.val_fraction (now {config.data.val_fraction:g})"
        )
    encode_prompt(prepared.tokenizer, config.samples.prompt)


def find_device(config: TrainConfig) -> Hardware:
    """The device that `trainer.device` asks for."""
    hardware = probe(config.trainer.device)
    wanted = config.trainer.device
    if wanted not in ("auto", hardware.device):
        raise UserFault(
            f"trainer.device={wanted}: this machine, or this build of PyTorch, has none; got {hardware.device}. "
            "Use trainer.device=auto"
        )
    count = torch.cuda.device_count()
    if hardware.device == "cuda" and config.trainer.devices > count:
        raise UserFault(f"trainer.devices={config.trainer.devices}: this machine has {count} GPU(s)")
    return hardware


def read_position(checkpoint: Path | None) -> Position:
    """Where a checkpoint stands."""
    if checkpoint is None:
        return Position()
    state = read_state(checkpoint)
    names = {field.name for field in fields(Position)}
    wrong = misfit(Position, state)
    if wrong or state.get("step") != step_of(checkpoint):
        raise unusable(checkpoint, f"{STATE} does not say where it stands ({wrong or shown(state.get('step'))})")
    return Position(**{name: value for name, value in state.items() if name in names})


def settle_choices(run: RunDirectory, config: TrainConfig, hardware: Hardware, prepared: Prepared) -> Choices:
    """The automatic choices: as they were when the run began, else from config and hardware."""
    choices = choose(config, hardware, prepared.tokenizer.vocab_size)
    saved = run.read_json("choices.json")
    if saved is not None and saved.get("devices") != choices.devices:
        print(
            f"Devices    {choices.devices} instead of {shown(saved.get('devices'))}: each step trains on the same "
            "tokens as before, but sums are taken in another order, so the last bits may differ"
        )
        run.event("devices_changed", was=saved.get("devices"), now=choices.devices)
    if saved is None or saved.get("device") != choices.device or saved.get("devices") != choices.devices:
        return choices
    explicit = {
        "compile": config.trainer.compile != "auto",
        "attention_kernel": config.trainer.attention_kernel != "auto",
        "micro_batch": config.trainer.micro_batch > 0,
        "threads": config.trainer.threads > 0,
        "validation_batch": config.validate.batch > 0,
    }
    kept = {name: value for name, value in saved.items() if not explicit.get(name)}
    if explicit["micro_batch"]:
        kept.pop("accumulate", None)
    fault = fault_in_choices(vars(choices) | kept, config)
    if fault:
        raise UserFault(
            f"{run.path / 'choices.json'} holds what no run chooses ({fault}). Put the file back as it was, or remove "
            "it: then the choices are made anew, and bits may differ from here on"
        )
    return Choices(**(vars(choices) | kept))


def check_fingerprint(run: RunDirectory, prepared: Prepared) -> None:
    """A run continues on the very tokens it began with."""
    saved = run.read_json("data.json")
    facts = {"fingerprint": prepared.fingerprint, "tokenizer": prepared.tokenizer.hash}
    if saved is not None and saved != facts:
        raise UserFault(
            f"the data has changed since the run {run.path} began (fingerprint {str(saved.get('fingerprint'))[:12]}, "
            f"now {prepared.fingerprint[:12]}). Put the old text back, or start another run with run.dir=NEW_DIR"
        )
    run.write_text("data.json", json.dumps(facts, indent=1) + "\n")


def restore_weights(gpt: GPT, config: TrainConfig, checkpoint: Path | None, tokenizer: Tokenizer) -> bytes | None:
    """Load the weights of the run's checkpoint, or of `init.from` for a new run.

    Returns:
        The optimizer's state to continue with, or None.
    """
    if checkpoint is not None:
        load_weights(gpt, read_tensors(checkpoint, MODEL), str(checkpoint))
        return read_file(checkpoint, OPTIMIZER)
    if config.init.source is not None:
        origin = find_checkpoint(config.init.source)
        theirs = read_tokenizer(origin)
        if theirs.hash != tokenizer.hash:
            raise UserFault(
                f"init.from={config.init.source}: its weights know a {theirs.name} tokenizer of {theirs.vocab_size:,} "
                f"tokens (SHA-256 {theirs.hash[:12]}), and this data has a {tokenizer.name} tokenizer of "
                f"{tokenizer.vocab_size:,} ({tokenizer.hash[:12]}): the same numbers would be other text. Start from "
                "weights with tokenizer=byte or tokenizer=gpt2, which are the same for any text"
            )
        load_weights(gpt, read_tensors(origin, MODEL), str(origin))
    return None


def fit(
    run: RunDirectory,
    module: LanguageModel,
    prepared: Prepared,
    hardware: Hardware,
    *,
    optimizer_state: bytes | None,
    signals: Signals,
) -> None:
    """Turn the crank."""
    config, choices, start_step = module.config, module.choices, module.position.step
    quiet_lightning()
    first_token_bytes = len(prepared.tokenizer.token_bytes(int(prepared.val.tokens(0, 1)[0])))
    peak = peak_flops(hardware, choices.precision)
    progress = Progress()
    remote = None
    if config.logger.name == "wandb" and run.writes:
        remote = RemoteLogger(config.logger, run.path, settings=to_dict(config), say=progress.print)
    rows, samples = (RowFile(path, progress.print) for path in (run.metrics, run.samples))
    callbacks = [
        SeedEachBatch(config.seed, start_step),
        Stopping(signals),
        Measure(flops_per_token(config, prepared.tokenizer.vocab_size), peak and peak * choices.devices),
        Validation(prepared.val, first_token_bytes),
        MetricsFile(rows, remote),
        progress,
        LiveSamples(prepared.tokenizer, samples, progress),
        Saving(
            run.checkpoints,
            {
                "config": redact_values(to_dict(replace(config, run=RunConfig()))),
                "tokenizer": prepared.tokenizer.to_json(),
            },
            optimizer_state,
            row_files=(rows, samples),
            say=progress.print,
            note=run.event,
        ),
    ]
    module.on_fault = partial(tell_skip, run, progress)
    data = TokenData(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=choices.micro_batch,
        accumulate=choices.accumulate,
        start_step=start_step,
        workers=config.data.workers,
        passed_over=run.passed_over(),
        on_loss=partial(tell_lost_loader, run, progress),
    )
    if choices.compile:
        compile_loss(module, prepared, progress)
    # Lightning counts steps from here on; the position is ours.
    remaining = None if module.total_steps is None else module.total_steps - start_step
    trainer = build_trainer(config, choices, total_steps=remaining, callbacks=callbacks)
    trainer.fit(module, datamodule=data)


def tell_skip(run: RunDirectory, progress: Progress, step: int, fault: str) -> None:
    """Say and note that a step was skipped."""
    batch = batch_of_step(step - 1, run.passed_over())
    run.event("skipped", step=step, batch=batch, reason=fault)
    if run.writes:
        progress.print(f"step {step:,} skipped: {fault}; the weights are as they were (batch {batch:,})")


def tell_lost_loader(run: RunDirectory, progress: Progress, sentence: str) -> None:
    """Say and note that a loader process was killed, on whichever rank."""
    run.event("loader_lost", reason=sentence)
    say = progress.print if run.writes else partial(print, file=sys.stderr)
    say(f"WARNING: {sentence}")


def settle_memory(
    gpt: GPT, config: TrainConfig, choices: Choices, *, prepared: Prepared, processes: Processes
) -> Choices:
    """Try one micro-batch; if it does not fit the memory of some device, all go on with a smaller one."""
    gpt.to(choices.device).train()
    batch = partial(first_batch, prepared, config, choices.device)
    fitting = fit_micro_batch(gpt, choices, batch, say=print)
    micro_batch = min(int(size) for size in processes.gather(str(fitting.micro_batch)))
    return replace(choices, micro_batch=micro_batch, accumulate=choices.micro_batch * choices.accumulate // micro_batch)


def first_batch(prepared: Prepared, config: TrainConfig, device: str, size: int) -> tuple[Tensor, Tensor]:
    """The run's first windows, to try things on: (tokens, targets), each (size, block_size)."""
    windows = MicroBatches(
        prepared.train,
        seed=config.seed,
        block_size=config.model.block_size,
        micro_batch=size,
        accumulate=1,
    )
    tokens, targets = windows[0]
    return tokens.to(device), targets.to(device)


def compile_loss(module: LanguageModel, prepared: Prepared, progress: Progress) -> None:
    """Compile the training step; the try runs on the run's first windows."""
    choices = module.choices
    tokens, targets = first_batch(prepared, module.config, choices.device, choices.micro_batch)
    progress.print("Compiling the training step (once; up to a minute or two) ...")
    module.gpt.to(choices.device).train()
    module.loss_function = compiled_loss(module.gpt, tokens, targets, precision=choices.precision, say=progress.print)


def close(run: RunDirectory, module: LanguageModel, prepared: Prepared) -> int:
    """Say how the run ended and what to type next."""
    position, reason = module.position, module.stop_reason
    limit = end_of(position, module.total_steps, module.config)
    if not run.writes:
        return STOPPED if reason == "signal" else FINISHED
    run.event("stopped" if reason == "signal" else "finished", step=position.step, reason=reason or limit)
    report(run)
    if reason == "signal":
        print(f"\nStopped after step {position.step:,} with a checkpoint. The same command continues the run.")
        mark_stopped(run.path)
        if module.requeue:
            requeue_slurm_job(print)
        return STOPPED
    if position.bad_steps == position.step:
        raise NonFiniteTraining(
            f"every one of the {position.step:,} steps was skipped: nothing was learned. Look at the data, or use a "
            f"lower optimizer.lr (now {module.config.optimizer.lr:g}) or trainer.precision=fp32"
        )
    if reason:
        why = "no better validation for trainer.patience validations" if reason == "patience" else "the time is up"
        print(f"\nEnded after step {position.step:,}: {why}.")
    print_results(run)
    return FINISHED


def report(run: RunDirectory) -> None:
    """Draw the run; trouble with it never spoils the training."""
    try:
        write_report(run.path)
    except Exception as error:
        print(f"The report could not be drawn: {type(error).__name__}: {error}")


def print_results(run: RunDirectory) -> None:
    """Validation loss, where everything is, and the command that samples."""
    validations = [row for row in read_rows(run.metrics) if row.get("val/loss") is not None]
    if not validations:
        print(f"Run directory  {run.path} (its metrics.jsonl holds no validation)")
        return
    best = min(validations, key=lambda row: row["val/loss"])
    last = validations[-1]
    for name, row in (("final", last), ("best", best)):
        print(
            f"Validation ({name}, step {row['step']:,})  {row['val/loss']:.4f} nats per token  "
            f"perplexity {row['val/perplexity']:.2f}  {row['val/bits_per_byte']:.4f} bits per byte"
        )
    print(f"Run directory  {run.path}")
    print(f"Picture        {run.path / 'loss.png'}   report  {run.path / 'report.html'}")
    print(f'Sample from it:  python scripts/sample.py checkpoint={run.path} prompt="..."')


def tell_finished(run: RunDirectory, position: Position, limit: str) -> None:
    """The run is done: show it again, and how to start another."""
    if not run.writes:
        return
    print(f"This run is finished: {position.step:,} steps, its trainer.{limit}.")
    print_results(run)
    print("Another run    the same command with run.dir=NEW_DIR or another seed")
    print(f"A longer run   the same command with run.dir={run.path} and a larger trainer.{limit}")
