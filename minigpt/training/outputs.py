"""What a run shows and keeps: validations, rows, samples and checkpoints, and the line that moves in a terminal."""

import math
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
import torch.distributed as dist

from minigpt.checkpoint.adapters import ADAPTER, ADAPTER_CONFIG, BASE, WORDS, base_hash, config_json, tensors_of
from minigpt.checkpoint.contents import CONFIG, OPTIMIZER, STATE, TOKENIZER, optimizer_tensors, to_json
from minigpt.config.convert import to_dict
from minigpt.config.schema import RunConfig, TrainConfig
from minigpt.data.batch import document_end
from minigpt.data.mix import MixedSplit, parts_of
from minigpt.data.prepared import Prepared
from minigpt.data.shards import TokenSplit
from minigpt.machine.sharding import free_gathered, sample_together
from minigpt.model.evaluate import Score, evaluate, mean_score
from minigpt.model.loss import autocast
from minigpt.redact import redact_values
from minigpt.rundir.loggers import RemoteLogger, TensorBoard
from minigpt.rundir.rows import RowFile
from minigpt.rundir.run_directory import RunDirectory
from minigpt.sampling.generate import NonFiniteLogits
from minigpt.sampling.write import write_sample
from minigpt.training.guard import StepResult
from minigpt.training.lightning_engine import call_callbacks, publish
from minigpt.training.saving import Files, Saving, pack_states

if TYPE_CHECKING:
    from minigpt.training.step import LanguageModel


OF_SOURCE = "val/loss/"  # followed by the name of a mixture's source: its column
PLAIN_LINE_SECONDS = 5.0  # without a terminal, at most one line in this time, validations apart


class Outputs:
    """Validates, writes rows, samples and saves when StepEnd says so; all but validations on rank 0 only.

    Used in a `with` block around the training, at whose end a checkpoint that is being written is finished.

    Args:
        module: the model in training.
        run: its directory.
        prepared: its tokens.
    """

    def __init__(self, module: "LanguageModel", run: RunDirectory, prepared: Prepared):
        config = module.config
        self.run, self.prepared = run, prepared
        self.screen = Screen(config, module.total_steps)
        self.rows, self.samples = (RowFile(path, self.screen.print) for path in (run.metrics, run.samples))
        plain = redact_values(to_dict(replace(config, run=RunConfig())))
        fixed: Files = {CONFIG: to_json(plain), TOKENIZER: to_json(prepared.tokenizer.to_json())}
        labels = {}
        if config.adapter.name != "none" and run.writes:
            fixed[ADAPTER_CONFIG] = to_json(config_json(module.gpt))
            hashes = {BASE: base_hash(module.gpt), WORDS: prepared.tokenizer.hash}
            labels[ADAPTER] = hashes
        files = (self.rows, self.samples)
        self.saving = Saving(
            run.checkpoints,
            fixed,
            config.checkpoint,
            writes=run.writes,
            row_files=files,
            say=self.screen.print,
            note=run.event,
        )
        self.saving.labels = labels
        self.unsaved: set[str] = set()  # the warnings printed about callbacks' states
        self.remote: RemoteLogger | TensorBoard | None = None
        if config.logger.name == "tensorboard" and run.writes:
            self.remote = TensorBoard(run.path, step=module.state.step, say=self.screen.print)
        elif config.logger.name == "wandb" and run.writes:
            self.remote = RemoteLogger(config.logger, run.path, settings=to_dict(config), say=self.screen.print)

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.saving.close(note=error is None)
        if self.run.writes:
            self.screen.close()
        if self.remote is not None and not isinstance(error, KeyboardInterrupt):  # Ctrl-C does not wait for an upload
            self.remote.close()

    def validate(self, module: "LanguageModel") -> dict[str, Any]:
        """Score the validation split (of a mixture, each source's), and note the best loss.

        Returns:
            The columns for the step's row.
        """
        state, trainer = module.state, module.trainer
        with module.clock.paused():
            call_callbacks(trainer, "on_validation_start")
            call_callbacks(trainer, "on_validation_epoch_start")
            val = self.prepared.val
            scores = {name: self.score(module, split) for name, split in parts_of(val).items()}
            score = mean_score(scores, val.shares) if isinstance(val, MixedSplit) else scores[val.name]
            columns: dict[str, Any] = {
                "val/loss": score.loss,
                "val/perplexity": score.perplexity,
                "val/bits_per_byte": score.bits_per_byte,
            }
            if isinstance(val, MixedSplit):
                columns |= {f"{OF_SOURCE}{name}": each.loss for name, each in scores.items()}
            if not math.isfinite(score.loss):
                columns = dict.fromkeys(columns)
            elif state.best_loss is None or score.loss < state.best_loss:
                state.best_loss, state.best_step = score.loss, state.step
            publish(trainer, columns)
            call_callbacks(trainer, "on_validation_epoch_end")
            call_callbacks(trainer, "on_validation_end")
        return columns

    def score(self, module: "LanguageModel", split: TokenSplit) -> Score:
        """Return a whole split's score, shared out over the ranks."""
        prepared, device, world_size = self.prepared, module.device, module.trainer.world_size
        score = evaluate(
            module.gpt,
            split,
            block_size=module.config.model.block_size,
            batch=module.choices.validation_batch,
            device=device,
            precision=module.choices.precision,
            token_bytes=prepared.tokenizer.token_bytes,
            document_end=document_end(module.config.data, prepared.tokenizer),
            rank=module.trainer.global_rank,
            world_size=world_size,
            together=module.layout is not None,
        )
        if module.layout is not None:
            free_gathered(module.gpt)
        if world_size == 1:
            return score
        dtype = torch.float64 if device.type != "mps" else torch.float32
        sums = torch.tensor([score.nats, score.tokens], dtype=dtype, device=device)
        dist.all_reduce(sums)
        return Score(float(sums[0]), int(sums[1]), score.bytes)

    def write(self, trainer: L.Trainer, row: dict[str, Any]) -> None:
        """Hand a row to callbacks, metrics.jsonl, TensorBoard and the screen."""
        publish(trainer, row)
        if self.run.writes:
            self.rows.add(row)
            if isinstance(self.remote, TensorBoard):  # wandb's process reads metrics.jsonl
                self.remote.log(row["step"], row)
            self.screen.show(row)

    def sample(self, module: "LanguageModel") -> None:
        """Let the model write some text: rank 0, or all ranks together where weights are sharded."""
        if not self.run.writes and module.layout is None:
            return
        config, step = module.config, module.state.step

        def write(**forward: Any) -> str | None:
            try:
                samples, seed = config.samples, config.seed + step
                return write_sample(module.gpt, self.prepared.tokenizer, samples, seed=seed, **forward)
            except NonFiniteLogits:  # the guard's matter
                return None

        with module.clock.paused():
            if module.layout is None:
                text = write()
            else:
                rank, device = module.trainer.global_rank, module.device.type
                with autocast(device, config.trainer.gather):  # weights gathered in bf16 need products in bf16
                    text = sample_together(module.gpt, rank, lambda forward: write(forward=forward))
            if not self.run.writes:
                return
            if text is None:
                self.screen.print(f"No sample at step {step:,}: the model's logits are NaN or infinite")
                return
            self.samples.add({"step": step, "text": text})
            self.screen.block(f"sample at step {step:,}", text)

    def save(self, module: "LanguageModel", row: dict[str, Any], *, due: bool, last: bool) -> None:
        """Save a checkpoint if one is due, and always when training ends here; all ranks do if weights are sharded."""
        takes_part = self.run.writes or module.layout is not None
        if not takes_part or not (due or last):
            return
        config, state, trainer = module.config, module.state, module.trainer
        with module.clock.paused():
            if self.run.writes:
                call_callbacks(trainer, "on_save_checkpoint", {"global_step": state.step})
            seconds = module.clock.seconds if config.trainer.max_minutes else 0.0
            if config.trainer.max_minutes and module.step_end.stop_reason == "max_minutes":
                seconds = max(seconds, 60.0 * config.trainer.max_minutes)  # by another rank's clock
            if module.scaler.is_enabled():
                state.loss_scale = module.scaler.get_scale()
                state.loss_scale_steps = module.scaler.state_dict()["_growth_tracker"]
            tensors = {**tensors_of(module.gpt), OPTIMIZER: optimizer_tensors(module.optimizer)}
            stands = asdict(state) | {"seconds": seconds, "tokens": state.step * config.batch_tokens}
            files = {STATE: to_json(stands), **self.pack_callbacks(trainer.callbacks)}  # type: ignore[attr-defined]
            judged = config.objective.name == "next_token"  # with a reward, the newest weights count as the best
            facts = {"val_loss": row.get("val/loss") if judged else None} | (
                {"bad_steps": state.bad_steps} if state.bad_steps else {}
            )
            self.saving.save(state.step, tensors, files, facts, last=last)

    def pack_callbacks(self, callbacks: Sequence[L.Callback]) -> Files:
        """Return the files that hold the callbacks' states; warn once of each state that can't be saved."""
        files, problems = pack_states(callbacks)
        for problem in problems:
            if problem not in self.unsaved:
                self.screen.print(f"WARNING: {problem}: it begins anew when the run continues")
        self.unsaved.update(problems)
        return files


class Meter:
    """Makes the rows: loss, gradient norm, learning rate and speed.

    Args:
        batch_tokens: tokens of an optimizer step.
        flops_per_token: forward and backward FLOPs.
        peak: the devices' FLOP/s together; None when unknown.
    """

    def __init__(self, batch_tokens: int, flops_per_token: float, peak: float | None):
        self.batch_tokens = batch_tokens
        self.flops_per_token = flops_per_token
        self.peak = peak
        self.last_step: int | None = None
        self.last_seconds = 0.0

    def row(self, step: int, result: StepResult, seconds: float) -> dict[str, Any]:
        """Return the row of a step; its speed is the mean since the row before."""
        speed = None
        if self.last_step is not None and seconds > self.last_seconds:
            speed = (step - self.last_step) * self.batch_tokens / (seconds - self.last_seconds)
        self.last_step, self.last_seconds = step, seconds
        return {
            "step": step,
            "tokens": step * self.batch_tokens,
            "train/loss": result.loss if math.isfinite(result.loss) else None,
            "train/grad_norm": result.grad_norm if math.isfinite(result.grad_norm) else None,
            "lr": result.lr,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(speed, 1) if speed else None,
            "mfu": round(speed * self.flops_per_token / self.peak, 4) if speed and self.peak else None,
        }


def duration(seconds: float) -> str:
    """Return seconds as 1:02:03 or 2:03."""
    hours, rest = divmod(int(seconds + 0.5), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Screen:
    """Prints step, loss, time left, speed and learning rate (rank 0 only).

    A dead terminal must not stop a run: what can't be printed is dropped.

    Args:
        config: of the run.
        total_steps: optimizer steps of the run, or None.
        stream: to print to; stdout if None.
    """

    def __init__(self, config: TrainConfig, total_steps: int | None, stream: Any = None):
        self.config = config
        self.total_steps = total_steps
        self.stream = stream or sys.stdout
        self.in_place = self.stream.isatty()
        self.shown_at = 0.0
        self.line_open = False

    def print(self, text: str = "") -> None:
        """Print a whole line, after clearing the one that moves."""
        self._write(("\r\x1b[K" if self.line_open else "") + text + "\n")
        self.line_open = False

    def block(self, title: str, text: str) -> None:
        """Print several lines under a title."""
        self.print(f"--- {title} " + "-" * max(3, 60 - len(title)))
        self.print(text.rstrip("\n"))
        self.print("-" * 65)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.in_place = False

    def show(self, row: dict[str, Any]) -> None:
        """Show a step's row: a moving line in a terminal, cut between its parts; elsewhere a line now and then."""
        parts = describe(row, self.config, self.total_steps)
        now = time.monotonic()
        if "val/loss" in row or (not self.in_place and (now - self.shown_at >= PLAIN_LINE_SECONDS or row["step"] == 1)):
            self.print("  ".join(parts))
            self.shown_at = now
        elif self.in_place:
            width = shutil.get_terminal_size().columns - 1
            while len("  ".join(parts)) > width and len(parts) > 1:
                parts.pop()
            self._write("\r" + "  ".join(parts)[:width] + "\x1b[K")
            self.line_open = True

    def close(self) -> None:
        """End the line that moves, as it is."""
        if self.line_open:
            self.print()


def describe(row: dict[str, Any], config: TrainConfig, total: int | None) -> list[str]:
    """Return the parts of a row's line, the most important first; unknown numbers are left out."""
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
    if speed:
        left = [(total - step) * config.batch_tokens / speed] if total else []
        left += [60 * minutes - row["seconds"]] if minutes else []
        parts += [f"ETA {duration(max(0.0, min(left)))}", f"{speed:,.0f} tok/s"]
    parts.append(f"lr {row['lr']:.2e}")
    return [*parts, f"MFU {row['mfu']:.1%}"] if row["mfu"] is not None else parts
