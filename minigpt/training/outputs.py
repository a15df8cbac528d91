"""What a run shows and keeps: validations, rows, samples and checkpoints."""

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
import torch.distributed as dist

from minigpt.checkpoint.pack import CONFIG, TOKENIZER, optimizer_tensors, to_json
from minigpt.config.convert import to_dict
from minigpt.config.schema import RunConfig
from minigpt.data.prepare import Prepared
from minigpt.model.evaluate import Score, evaluate
from minigpt.redact import redact_values
from minigpt.rundir.loggers import RemoteLogger, TensorBoard
from minigpt.rundir.rows import RowFile
from minigpt.rundir.run_directory import RunDirectory
from minigpt.sampling.write import write_sample
from minigpt.training.callbacks import pack_states
from minigpt.training.lightning_engine import call_callbacks, publish
from minigpt.training.progress import Screen
from minigpt.training.saving import Files, Saving, Snapshot

if TYPE_CHECKING:
    from minigpt.training.step import LanguageModel


class Outputs:
    """Makes them when StepEnd says so; all but validations on rank 0 only.

    In a `with` block around the training: at its end what is being written becomes whole.

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
        fixed: Files = {CONFIG: [to_json(plain)], TOKENIZER: [to_json(prepared.tokenizer.to_json())]}
        files = (self.rows, self.samples)
        self.saving = Saving(
            run.checkpoints, fixed, config.checkpoint, row_files=files, say=self.screen.print, note=run.event
        )
        self.remote: RemoteLogger | TensorBoard | None = None
        if config.logger.name == "tensorboard" and run.writes:
            self.remote = TensorBoard(run.path, step=module.state.step, say=self.screen.print)
        elif config.logger.name == "wandb" and run.writes:
            self.remote = RemoteLogger(config.logger, run.path, settings=to_dict(config), say=self.screen.print)

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self.run.writes:
            self.saving.close(note=error is None)
            self.screen.close()
        if self.remote is not None and not isinstance(error, KeyboardInterrupt):  # who wants out is not kept waiting
            self.remote.close()

    def validate(self, module: "LanguageModel") -> dict[str, Any]:
        """Score the validation split and note the best loss.

        Returns:
            The columns for the step's row.
        """
        state, trainer = module.state, module.trainer
        with module.clock.paused():
            call_callbacks(trainer, "on_validation_start")
            call_callbacks(trainer, "on_validation_epoch_start")
            score = self.score(module)
            columns: dict[str, Any] = {
                "val/loss": score.loss,
                "val/perplexity": score.perplexity,
                "val/bits_per_byte": score.bits_per_byte,
            }
            if not math.isfinite(score.loss):
                columns = dict.fromkeys(columns)
            elif state.best_loss is None or score.loss < state.best_loss:
                state.best_loss, state.best_step = score.loss, state.step
            publish(trainer, columns)
            call_callbacks(trainer, "on_validation_epoch_end")
            call_callbacks(trainer, "on_validation_end")
        return columns

    def score(self, module: "LanguageModel") -> Score:
        """Return the whole split's score, shared out over the ranks."""
        prepared, device, world_size = self.prepared, module.device, module.trainer.world_size
        score = evaluate(
            module.gpt,
            prepared.val,
            block_size=module.config.model.block_size,
            batch=module.choices.validation_batch,
            device=device,
            precision=module.choices.precision,
            first_token_bytes=len(prepared.tokenizer.token_bytes(int(prepared.val.tokens(0, 1)[0]))),
            rank=module.trainer.global_rank,
            world_size=world_size,
        )
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
        """Let the model write some text (rank 0 only)."""
        if not self.run.writes:
            return
        config, step = module.config, module.state.step
        with module.clock.paused():
            text = write_sample(module.gpt, self.prepared.tokenizer, config.samples, seed=config.seed + step)
            self.samples.add({"step": step, "text": text})
            self.screen.block(f"sample at step {step:,}", text)

    def save(self, module: "LanguageModel", row: dict[str, Any], *, due: bool, last: bool) -> None:
        """Save a checkpoint if one is due, and always when training ends here (rank 0 only)."""
        if not self.run.writes or not self.saving.has_to(due=due, last=last):
            return
        config, state, trainer = module.config, module.state, module.trainer
        with module.clock.paused():
            call_callbacks(trainer, "on_save_checkpoint", {"global_step": state.step})
            seconds = module.clock.seconds if config.trainer.max_minutes else 0.0
            if module.scaler.is_enabled():
                state.loss_scale = module.scaler.get_scale()
                state.loss_scale_steps = module.scaler.state_dict()["_growth_tracker"]
            snapshot = Snapshot(
                step=state.step,
                weights=module.gpt.state_dict(),
                averages=optimizer_tensors(module.optimizer),
                state=asdict(state) | {"seconds": seconds, "tokens": state.step * config.batch_tokens},
                facts={"val_loss": row.get("val/loss")} | ({"bad_steps": state.bad_steps} if state.bad_steps else {}),
                files=pack_states(trainer.callbacks)[0],  # type: ignore[attr-defined]
            )
            self.saving.save(snapshot, last=last)
