"""A training run from config to finished model: begin it, or continue it from its last checkpoint."""

import gc
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch

from minigpt.checkpoint import contents, folder
from minigpt.config.convert import flatten, seconds_of, shown, to_dict
from minigpt.config.run_names import Change, run_dir_of
from minigpt.config.schema import TrainConfig
from minigpt.data.batch import MicroBatches
from minigpt.data.order import batch_of_step
from minigpt.data.prepared import Prepared
from minigpt.faults import FINISHED, NonFiniteTraining, StoppedEarly, UserFault
from minigpt.machine.choices import Choices, keep_choices
from minigpt.machine.hardware import Hardware, find_device
from minigpt.machine.sharding import make_mesh, shard
from minigpt.machine.torch_setup import set_up_torch
from minigpt.model.gpt import GPT, empty_gpt
from minigpt.ranks.group import Processes, joined
from minigpt.ranks.signals import Signals
from minigpt.report.plan import describe_plan, length_warnings
from minigpt.rundir.rows import cut_rows_after
from minigpt.rundir.run_directory import RunDirectory
from minigpt.screen import tell
from minigpt.seeds import fold
from minigpt.sizing.dial import applied, size_run
from minigpt.training import start
from minigpt.training.finish import finish, refuse_nothing_learned, steadier, tell_finished
from minigpt.training.first_pass import explained_out_of_memory, first_pass, text_batches
from minigpt.training.grpo import Questions
from minigpt.training.guard import RollBack
from minigpt.training.lightning_engine import build_trainer, quiet_lightning
from minigpt.training.optimizer import build_optimizer
from minigpt.training.output import RunLog
from minigpt.training.saving import Saving, pack_states, restore_states
from minigpt.training.speed import Stopwatch, Validations, noise, part_of
from minigpt.training.state import RunState, TrainingJob, reached_limit, read_run_state, steps_of
from minigpt.training.step import LanguageModel

BUDGET = "budget.json"
PART = 4  # a pilot is judged, twice, on 1 / PART of its tokens


def train(config: TrainConfig, callbacks: Sequence[L.Callback] = ()) -> int:
    """Train until the config's end, beginning or continuing the run in `run.dir`.

    Args:
        config: composed and checked.
        callbacks: your own Lightning callbacks, called when a step is complete. They get all hooks of
            training, and around validations and saves on_validation_start, _epoch_start, _epoch_end and _end, and
            on rank 0 on_save_checkpoint. `trainer.callback_metrics` holds the last row; `trainer.should_stop = True`
            ends the training with a checkpoint. What `state_dict()` returns must be JSON; it is saved, and handed to
            `load_state_dict()` when the run continues.

    Returns:
        0 when the run is finished, 75 when a signal stopped it with a checkpoint.
    """
    pack_states(callbacks)  # refuses a state that can't be saved
    try:
        with Signals() as signals:
            signals.raise_if_received()
            hardware = find_device(config)
            with joined(config.trainer, hardware.device, signals) as processes:
                return train_rank(config, hardware, processes, callbacks)
    except StoppedEarly as early:
        print(early, file=sys.stderr)
        return early.exit_code


def train_rank(config: TrainConfig, hardware: Hardware, processes: Processes, callbacks: Sequence[L.Callback]) -> int:
    """Run one process of a training. Rank 0 writes and prints; the others wait before they read what it writes."""
    processes.require_equal_on_all_ranks("a config", flatten(to_dict(config)))
    least = min(map(int, processes.gather(str(hardware.memory_bytes))))  # so that all ranks make the same choices
    path, budget = run_dir_of(config), None
    if config.budget:
        config, budget = with_budget(config, hardware, processes)
    with processes.rank_zero_first():
        changes = start.refuse_changed_run(path, config)
        prepared = start.find_tokens(config, path, changes, is_told=budget is not None)
    config = with_epochs(config, prepared)
    processes.require_equal_on_all_ranks("tokens", {"fingerprint": prepared.fingerprint})
    start.refuse_unfit_data(config, prepared)
    with RunDirectory(path, writes=processes.rank == 0) as run:
        if budget is not None:
            run.write_json(BUDGET, budget)
        job = TrainingJob(config, replace(hardware, memory_bytes=least), prepared, processes, run, callbacks)
        return begin_or_continue(job, changes)


def with_budget(config: TrainConfig, hardware: Hardware, processes: Processes) -> tuple[TrainConfig, dict[str, Any]]:
    """Return the config with the settings that a budget chooses, now or when the run began, and its budget.json."""
    run = RunDirectory(run_dir_of(config), writes=processes.rank == 0)
    budget: dict[str, Any] | None = json.loads(processes.gather(json.dumps(run.writes and run.read_json(BUDGET)))[0])
    if not budget:
        here: dict[str, Any] = {"hardware": hardware, "processes": processes}
        budget = size_run(config, hardware.device, partial(measured, **here), partial(piloted, **here), processes)
    elif budget["seconds"] != seconds_of(str(config.budget)):
        given = f"run.dir={run.path} was begun with budget={budget['seconds']:g}s, got budget={config.budget}"
        raise UserFault(f"{given}. Use the former, or another run.dir")
    settings = {key: value for key, value in budget["settings"].items() if key not in config.typed}
    return applied(config, settings), budget


def tried(
    config: TrainConfig, prepared: Prepared, hardware: Hardware, processes: Processes, callbacks: Sequence[L.Callback]
) -> RunState:
    """Train without writing anything; return the state at the end."""
    state, run = RunState(), RunDirectory(Path(os.devnull), writes=False)
    job = TrainingJob(config, hardware, prepared, processes, run, callbacks)
    choices = choose_alike(job, None)
    config.samples.every_steps = 0
    signals, was_quiet = processes.signals, processes.signals.quiet
    signals.quiet = True  # a stop keeps no checkpoint here
    try:
        fit(*assemble(job, choices, None, state))
    except RollBack:
        wrong = "a first trial for budget= has no finite loss. Use"
        raise NonFiniteTraining(f"{wrong} a lower optimizer.lr (now {config.optimizer.lr:g})") from None
    finally:
        signals.quiet = was_quiet
    gc.collect()
    signals.raise_if_received()
    return state


def measured(config: TrainConfig, vocab_size: int, seconds: float, hardware: Hardware, processes: Processes) -> float:
    """Train on random tokens for some seconds; return the tokens per second."""
    watch = Stopwatch(seconds)
    config.trainer.max_steps, config.validate.every_steps = None, 0
    tried(config, noise(vocab_size, config.model.block_size + 1), hardware, processes, [watch])
    return float(processes.gather(str(watch.steps_per_second * config.batch_tokens))[0])


def piloted(config: TrainConfig, prepared: Prepared, hardware: Hardware, processes: Processes) -> tuple[float, float]:
    """Train on a text; return the bits per byte of (a part of) its validation text after half of the steps and all."""
    steps, validations = config.trainer.max_steps or 1, Validations()
    part = part_of(prepared.val, config.model.block_size, steps * config.batch_tokens // PART)
    config.trainer.compile, config.validate.every_steps = "off", math.ceil(steps / 2)
    tried(config, replace(prepared, val=part), hardware, processes, [validations])
    return validations.bits[0], validations.bits[-1]


def alone(config: TrainConfig) -> TrainConfig:
    """Return the config for one device."""
    return replace(config, trainer=replace(config.trainer, devices=1, nodes=1, strategy="auto", shards=0))


def measured_alone(config: TrainConfig, vocab_size: int, seconds: float) -> float:
    """Return the speed that `measured` finds on one device with its share of a batch, times the number of devices."""
    devices = config.trainer.devices * config.trainer.nodes
    share = replace(alone(config), batch_tokens=config.batch_tokens // devices)
    return devices * measured(share, vocab_size, seconds, find_device(config), Processes())


def piloted_alone(config: TrainConfig, prepared: Prepared) -> tuple[float, float]:
    """Return the bits per byte that `piloted` reaches on one device, with whole batches."""
    return piloted(alone(config), prepared, find_device(config), Processes())


def with_epochs(config: TrainConfig, prepared: Prepared) -> TrainConfig:
    """Return the config, with the number of steps in trainer.epochs passes over the training text if that is set."""
    if (epochs := config.trainer.epochs) is None:
        return config
    # Rounded first: a whole number of steps is not exact here.
    steps = math.ceil(round(epochs / prepared.train.passes(config.batch_tokens, config.model.block_size), 6))
    return replace(config, trainer=replace(config.trainer, max_steps=steps))


def begin_or_continue(job: TrainingJob, changes: Sequence[Change]) -> int:
    """Train in a locked run directory; go back to a checkpoint as often as the guard allows."""
    run = job.run
    if run.writes:
        folder.remove_unfinished(run.checkpoints)
    while True:
        newest = folder.latest_usable(run.checkpoints) if run.writes else None  # rank 0 verifies it for all ranks
        name = from_rank_zero(job, lambda: newest and newest.name)  # noqa: B023 - called at once
        checkpoint = run.checkpoints / name if name else None
        manifest = folder.read_manifest(checkpoint)["sha256"] if checkpoint else None
        job.processes.require_equal_on_all_ranks("a checkpoint", {"folder": name, "manifest": manifest})
        state = read_run_state(checkpoint)
        if limit := reached_limit(state, job.config):
            refuse_nothing_learned(job, state)
            tell_finished(run, state, limit)
            return FINISHED
        try:
            return train_from(job, checkpoint, state, changes)
        except RollBack as request:
            roll_back(job, *request.args)
        gc.collect()  # model and trainer refer to each other
        changes = ()


def train_from(job: TrainingJob, checkpoint: Path | None, state: RunState, changes: Sequence[Change]) -> int:
    """Train from a checkpoint, or from the start, to the end of the run or to a stop.

    Raises:
        RollBack: the guard wants to go back to an earlier checkpoint.
    """
    config, run, prepared = job.config, job.run, job.prepared
    job.processes.signals.raise_if_received()
    start.complete_tokenizer(config, checkpoint, prepared)
    saved_choices = from_rank_zero(job, lambda: run.read_json("choices.json"))
    module, batches = assemble(job, choose_alike(job, saved_choices), checkpoint, state)
    choices = module.choices

    # Nothing was written before this line: a refused run is unchanged.
    run.write_json("data.json", prepared.facts)
    run.record(config, asdict(choices))
    removed = cut_rows_after(run.metrics, state.step) if run.writes else 0
    if run.writes:
        cut_rows_after(run.samples, state.step)
    run.event("continued" if checkpoint else "began", step=state.step, rows_written_again=removed)
    if removed and checkpoint is None:
        tell(f"WARNING: {run.checkpoints} holds no checkpoint: the run begins again, at step 1, without its rows")
    tell_changes(run, saved_choices, choices, changes)
    tell(f"Run        {run.path}" + (f", continuing after step {state.step:,}" if checkpoint else ""))
    steps = steps_of(config)
    print(describe_plan(config, choices, job.hardware, gpt=module.gpt, prepared=prepared, total_steps=steps))
    for warning in [] if (run.path / BUDGET).exists() else length_warnings(config, prepared.train, steps):
        tell(f"WARNING    {warning}")
    fit(module, batches)
    return finish(job, state, module.stop_reason, ask_queue=module.requeue)


def assemble(
    job: TrainingJob, choices: Choices, checkpoint: Path | None, state: RunState
) -> tuple[LanguageModel, MicroBatches | Questions]:
    """Return the model with its optimizer, from a checkpoint or new, and its batches. Nothing is written."""
    config, prepared = job.config, job.prepared
    set_up_torch(choices, deterministic=config.trainer.deterministic)
    torch.manual_seed(fold(config.seed))
    mesh = make_mesh(config.trainer, choices.device) if config.trainer.sharded else None
    first = job.processes.rank == 0
    # Only rank 0 has the weights in main memory; DDP's constructor, or `shard`, sends them to the others.
    build = GPT if first else partial(empty_gpt, device="meta" if mesh else choices.device)
    gpt = build(config.model, prepared.tokenizer.vocab_size, kernel=choices.attention_kernel)
    if choices.precision == "fp64":
        gpt.double()
    if first:
        start.load_weights(gpt, config, checkpoint, prepared)
    start.put_adapter_on(gpt, config, checkpoint, prepared.tokenizer)
    choices, loss = first_pass(gpt, job, choices)
    place: dict[str, Any] = {"rank": job.processes.rank, "start_step": state.step}
    place["skipped_batches"] = from_rank_zero(job, job.run.skipped_batches) or []
    batches: MicroBatches | Questions
    if config.objective.name == "grpo":
        batches = Questions(config, choices, prepared.tokenizer, **place)
    else:
        batches = text_batches(config, choices, prepared, **place)
    if mesh is not None:
        shard(gpt, mesh, config, choices)
    group = mesh.get_group("part") if mesh else None  # the processes that hold one copy of the weights
    optimizer = build_optimizer(config.optimizer, gpt, precision=choices.precision, group=group)
    if checkpoint is not None:
        contents.restore_optimizer(contents.read_tensors(checkpoint / contents.OPTIMIZER), optimizer)
        restore_states(job.callbacks, checkpoint)
    return LanguageModel(gpt, job, choices, optimizer=optimizer, state=state, loss=loss), batches


def fit(module: LanguageModel, batches: MicroBatches | Questions) -> None:
    """Train; `module.stop_reason` then says why the training ended."""
    job, choices, step = module.job, module.choices, module.state.step
    quiet_lightning()
    # Lightning counts the steps of this process; `state` counts those of the run.
    steps_left = -1 if module.total_steps is None else module.total_steps - step
    trainer = build_trainer(job.config, choices, steps=steps_left, callbacks=list(job.callbacks))
    saving = Saving(job, module.gpt, module.optimizer, step)
    with RunLog(job, choices, step) as module.run_log, saving as module.saving, explained_out_of_memory(choices):
        trainer.fit(module, batches)


def choose_alike(job: TrainingJob, saved: dict[str, Any] | None) -> Choices:
    """Return the choices for this config and hardware, or the run's own, equal on all ranks."""
    choices = keep_choices(saved, job.config, job.hardware, job.prepared.tokenizer.vocab_size)
    threads = int(job.processes.gather(str(choices.threads))[0])  # hosts may differ in their number of cores
    choices = replace(choices, threads=threads)
    job.processes.require_equal_on_all_ranks("choices", asdict(choices))
    return choices


def tell_changes(run: RunDirectory, saved: dict[str, Any] | None, choices: Choices, changes: Sequence[Change]) -> None:
    """Report, on the screen and in events.jsonl, choices and settings that have changed since the run last stopped."""
    now = asdict(choices)
    if changed := {name: value for name, value in (saved or {}).items() if value != now[name]}:
        listed = ", ".join(f"{name} {shown(was)} -> {shown(now[name])}" for name, was in changed.items())
        tell(f"Choices    changed since the run was last started, so the last bits may differ: {listed}")
        run.event("choices_changed", was=changed, now={name: now[name] for name in changed})
    for change in changes:
        run.event("changed", setting=change.key, was=change.was, now=change.now)


def roll_back(job: TrainingJob, first_step: int, last_step: int) -> None:
    """Skip the bad batches from now on, and remove the checkpoints made during them.

    Raises:
        NonFiniteTraining: the run has gone back too often.
    """
    run, config = job.run, job.config
    skipped_batches = from_rank_zero(job, run.skipped_batches)
    steps = f"steps {first_step:,} to {last_step:,}"
    if len(skipped_batches) >= config.guard.max_rollbacks:
        run.event("gave_up", first_step=first_step, last_step=last_step)
        wrong = f"{steps} were not fit to train on, after {len(skipped_batches)} returns to an earlier checkpoint"
        limit = f"guard.max_rollbacks={config.guard.max_rollbacks}"
        remedy = f"Continue it in a new run with init.from={run.path} run.dir=NEW_DIR and {steadier(job)}"
        raise NonFiniteTraining(f"{wrong} ({limit}). The last good checkpoint is kept. {remedy}")
    window = [batch_of_step(step - 1, skipped_batches) for step in (first_step, last_step)]
    if run.writes:
        # In this order: if killed in between, the run meets the bad batches again. In the other order it would continue
        # from a checkpoint that was trained on them.
        folder.discard_from(run.checkpoints, first_step)
        run.write_json("skipped_batches.json", [*skipped_batches, window])
    run.event("rolled_back", first_step=first_step, last_step=last_step, batches_passed_over=window)
    tell(f"Going back: {steps} were bad. Their batches ({window[0]:,} to {window[1]:,}) are left out from now on.")
    job.processes.wait()


def from_rank_zero(job: TrainingJob, read: Callable[[], Any]) -> Any:
    """Return on all ranks the JSON that rank 0 reads in the run directory.

    Over NFS, another host may not see a file for half a minute after rank 0 has written it.
    """
    return json.loads(job.processes.gather(json.dumps(read() if job.run.writes else None))[0])
