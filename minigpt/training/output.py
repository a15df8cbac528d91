"""Validations, live samples and rows of a run: on the screen and in files."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist

from minigpt.checkpoint.contents import copy_tensors
from minigpt.config.convert import to_dict
from minigpt.config.schema import LoggerConfig, TrainConfig
from minigpt.data.batch import document_end
from minigpt.data.chat.packing import Split
from minigpt.machine.choices import Choices
from minigpt.machine.hardware import peak_flops
from minigpt.machine.sharding import free_gathered
from minigpt.machine.torch_setup import eager
from minigpt.model.counting import flops_per_token
from minigpt.model.evaluate import Score, evaluate, mean_score
from minigpt.model.gpt import GPT, empty_gpt
from minigpt.redact import redact_values
from minigpt.rundir.loggers import Tracker
from minigpt.rundir.rows import append_row
from minigpt.sampling.generate import NonFiniteLogits
from minigpt.sampling.write import write_sample
from minigpt.screen import LINE_SECONDS, MOVE_SECONDS, can_move, duration, move, tell
from minigpt.training.guard import StepResult
from minigpt.training.lightning_engine import call_callbacks, publish
from minigpt.training.state import RunState, TrainingJob, out_of_patience, steps_of

OF_SOURCE = "val/loss/"  # + the name of a source of a mixture: its column


def validate(gpt: GPT, job: TrainingJob, choices: Choices, state: RunState, trainer: L.Trainer) -> dict[str, Any]:
    """Score the whole validation split (of a mixture, each source's), and record the best loss in `state`.

    Returns columns of the step's row; None where the loss is not finite.
    """
    call_callbacks(trainer, "on_validation_start")
    call_callbacks(trainer, "on_validation_epoch_start")
    val, is_mixture = job.prepared.val, bool(job.prepared.parts)
    scores = {name: score_split(gpt, split, job, choices) for name, split in val.parts.items()}
    score = mean_score(scores, val.shares) if is_mixture else scores[val.name]
    columns: dict[str, Any] = {f"val/{key}": getattr(score, key) for key in ("loss", "perplexity", "bits_per_byte")}
    if is_mixture:
        columns |= {f"{OF_SOURCE}{name}": part.loss for name, part in scores.items()}
    if not math.isfinite(score.loss):
        columns = dict.fromkeys(columns)
    elif state.best_loss is None or score.loss < state.best_loss:
        state.best_loss, state.best_step = score.loss, state.step
    state.patience_over = math.isfinite(score.loss) and out_of_patience(state, job.config)
    publish(trainer, columns)
    call_callbacks(trainer, "on_validation_epoch_end")
    call_callbacks(trainer, "on_validation_end")
    return columns


def score_split(gpt: GPT, split: Split, job: TrainingJob, choices: Choices) -> Score:
    """Return the score of one validation split, over all ranks."""
    config, tokenizer, ranks = job.config, job.prepared.tokenizer, job.processes
    device = next(gpt.parameters()).device
    with eager():
        score = evaluate(
            gpt,
            split,
            block_size=config.model.block_size,
            batch=choices.validation_batch,
            device=device,
            precision=choices.precision,
            document_end=document_end(config.data, tokenizer),
            rank=ranks.rank,
            world_size=ranks.world_size,
            together=config.trainer.sharded,
        )
    if config.trainer.sharded:
        free_gathered(gpt)
    if ranks.world_size == 1:
        return score
    nats = torch.tensor(score.nats, dtype=torch.float64, device=device)
    dist.all_reduce(nats)
    return replace(score, nats=float(nats))


def live_sample(gpt: GPT, job: TrainingJob, *, step: int) -> str | None:
    """Let the model write some text; None if its logits are not finite, which the guard will handle.

    Where weights are sharded all ranks call this.
    """
    config = job.config
    if config.trainer.sharded:  # rank 0 writes with whole weights in main memory
        weights = copy_tensors(gpt.state_dict(), {} if job.run.writes else None)
        if not job.run.writes:
            return None
        if next(gpt.parameters()).is_cuda:
            torch.cuda.current_stream().synchronize()  # for the copies
        gpt = empty_gpt(gpt.config, gpt.vocab_size)
        gpt.load_state_dict(weights)
    try:
        return write_sample(gpt, job.prepared.tokenizer, config.samples, seed=config.seed + step)
    except NonFiniteLogits:
        return None


class RunLog:
    """Writes rows to metrics.jsonl and samples.jsonl, to wandb or TensorBoard, and to the screen (rank 0 only)."""

    def __init__(self, job: TrainingJob, choices: Choices, step: int):
        config, self.run, self.job = job.config, job.run, job
        self.total_steps = steps_of(config)
        peak = peak_flops(job.hardware, choices.precision) if config.adapter.name == "none" else None
        self.peak = peak and peak * choices.devices
        self.flops = flops_per_token(config.model, job.prepared.tokenizer.vocab_size)  # as if frozen weights learned
        self.first: tuple[int, float] | None = None  # step and seconds of this process's first row
        self.last_step: int | None = None  # with a row
        self.last_seconds = self.shown_at = 0.0
        self.shown: dict[str, Any] = {"tokens_per_second": None, "mfu": None}  # the last row
        self.val_loss: float | None = None  # of the last validation
        logger = config.logger if self.run.writes else LoggerConfig()  # which names none
        self.tracker = Tracker(logger, self.run.path, settings=redact_values(to_dict(config)), step=step)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not isinstance(error, KeyboardInterrupt):  # Ctrl-C waits for no upload
            self.tracker.close()

    def row(self, step: int, result: StepResult, seconds: float) -> dict[str, Any]:
        """Return the row of a step; its speed is the mean since the row before."""
        speed, tokens = self._speed(step, seconds), self.job.config.batch_tokens
        self.last_step, self.last_seconds, self.first = step, seconds, self.first or (step, seconds)
        row = {
            "step": step,
            "tokens": step * tokens,
            "train/loss": result.loss if math.isfinite(result.loss) else None,
            "train/grad_norm": result.grad_norm if math.isfinite(result.grad_norm) else None,
            "lr": result.lr,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(speed, 1) if speed else None,
            "mfu": round(speed * self.flops / self.peak, 4) if speed and self.peak else None,
        }
        if self.job.config.objective.name == "grpo":  # its loss stays near 0 and shows no progress
            row |= {"train/loss": None, "train/reward": result.reward}
        return row

    def write(self, row: dict[str, Any]) -> None:
        """Write a row to file, tracker and screen."""
        if self.run.writes:
            self._append(self.run.metrics, row)
            self.tracker.log(row)
            self._show(row)

    def write_sample(self, step: int, text: str | None) -> None:
        if not self.run.writes:
            return
        if text is None:
            tell(f"No sample at step {step:,}: the model's logits are NaN or infinite")
            return
        self._append(self.run.samples, {"step": step, "text": text})
        rule = "-" * 65
        tell(f"{f'--- sample at step {step:,} {rule}':.65}\n{text.strip()}\n{rule}")

    def _speed(self, step: int, seconds: float) -> float | None:
        if self.last_step is None or seconds <= self.last_seconds:
            return None
        return (step - self.last_step) * self.job.config.batch_tokens / (seconds - self.last_seconds)

    def _append(self, path: Path, row: dict[str, Any]) -> None:
        """Append a row to a file. If the disk fails, this row is lost, with a warning."""
        try:
            append_row(path, row)
        except OSError as error:
            tell(f"WARNING: {path} lacks the row of step {row['step']}: {error.strerror or error}. Free some space")

    def tick(self, step: int, result: StepResult, seconds: float) -> None:
        """Move a terminal's line for a step without a row: rows may be minutes apart."""
        if time.monotonic() - self.shown_at >= MOVE_SECONDS and can_move():
            speed = self.shown["tokens_per_second"] or self._speed(step, seconds)
            row = {"step": step, "train/loss": result.loss, "lr": result.lr, "seconds": seconds}
            self._move(self.shown | row | {"tokens_per_second": speed})

    def _show(self, row: dict[str, Any]) -> None:
        """Show a step's row: a moving line in a terminal; elsewhere a line now and then."""
        now, moves = time.monotonic(), can_move()
        self.shown = {key: value for key, value in row.items() if not key.startswith("val/")}
        if "val/loss" in row or (not moves and (now - self.shown_at >= LINE_SECONDS or row["step"] == 1)):
            tell("  ".join(describe(row, self.job.config, self.total_steps, self.first)))
            self.shown_at, self.val_loss = now, row.get("val/loss", self.val_loss)
        elif moves and now - self.shown_at >= MOVE_SECONDS:
            self._move(row)

    def _move(self, row: dict[str, Any]) -> None:
        parts = describe(row, self.job.config, self.total_steps, self.first)
        parts[2:2] = [f"val {self.val_loss:.4f}"] if self.val_loss else []
        share = row["step"] / self.total_steps if self.total_steps else 0.0
        parts[0] = parts[0].removesuffix(f" {share:4.0%}")  # which the bar shows
        move(parts, share)
        self.shown_at = time.monotonic()


def describe(row: dict[str, Any], config: TrainConfig, total: int | None, first: tuple[int, float] | None) -> list[str]:
    """Return the parts of a row's line, the most important first; unknown numbers are left out.

    The time left follows from all steps since the `first` row, so one slow step changes it little.
    """
    step, speed, minutes = row["step"], row["tokens_per_second"], config.trainer.max_minutes
    digits = len(f"{total:,}") if total else 1
    parts = [f"step {step:>{digits},}" + (f"/{total:,} {step / total:4.0%}" if total else "")]
    if "train/reward" in row:
        parts.append(f"reward {row['train/reward']:.3f}")
    else:
        parts.append("no loss" if row["train/loss"] is None else f"loss {row['train/loss']:.4f}")
    if row.get("val/loss") is not None:
        parts.append(f"val {row['val/loss']:.4f} ({row['val/bits_per_byte']:.3f} bits/byte)")
        parts += [f"{key.removeprefix(OF_SOURCE)} {loss:.4f}" for key, loss in row.items() if key.startswith(OF_SOURCE)]
    if speed and first:
        left = [(total - step) * (row["seconds"] - first[1]) / (step - first[0])] if total else []
        left += [60 * minutes - row["seconds"]] if minutes else []
        parts += [f"ETA {duration(min(left))}"] if min(left) > 0 else []
        parts.append(f"{speed:,.0f} tok/s")
    parts.append(f"lr {row['lr']:.2e}")
    return [*parts, f"MFU {row['mfu']:.1%}"] if (row["mfu"] or 0) >= 0.001 else parts
