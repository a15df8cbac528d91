"""Validation on the whole split, every so many steps and at the end."""

import math
from typing import Any

import lightning as L
import torch

from minigpt.data.shards import TokenSplit
from minigpt.model.evaluate import Score, evaluate
from minigpt.training.boundary import at_step_end, is_due, is_last_step, out_of_patience
from minigpt.training.module import LanguageModel
from minigpt.training.trainer import call_callbacks


class Validation(L.Callback):
    """Adds `val/loss`, `val/perplexity` and `val/bits_per_byte` to the step's row and keeps the best.

    Args:
        split: the validation tokens.
        first_token_bytes: text bytes of the split's first token.
    """

    def __init__(self, split: TokenSplit, first_token_bytes: int):
        self.split = split
        self.first_token_bytes = first_token_bytes

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = pl_module.config.validate.every_steps
        if at_step_end(trainer, batch_idx) and (is_due(pl_module, every) or is_last_step(pl_module)):
            with pl_module.clock.paused():
                call_callbacks(trainer, "on_validation_start")
                self.validate(trainer, pl_module)
                call_callbacks(trainer, "on_validation_end")

    def validate(self, trainer: L.Trainer, module: LanguageModel) -> None:
        """Score the split and note the result."""
        score = self.score(trainer, module)
        position = module.position
        if not math.isfinite(score.loss):
            module.row |= {"val/loss": None, "val/perplexity": None, "val/bits_per_byte": None}
            return
        if position.best_loss is None or score.loss < position.best_loss:
            position.best_loss, position.best_step = score.loss, position.step
        if out_of_patience(position, module.config):
            module.stop_reason = "patience"
            trainer.should_stop = True
        module.row |= {
            "val/loss": score.loss,
            "val/perplexity": score.perplexity,
            "val/bits_per_byte": score.bits_per_byte,
        }

    def score(self, trainer: L.Trainer, module: LanguageModel) -> Score:
        """The whole split's score, shared out over the processes."""
        choices = module.choices
        score = evaluate(
            module.gpt,
            self.split,
            block_size=module.config.model.block_size,
            batch=choices.validation_batch,
            device=module.device,
            precision=choices.precision,
            first_token_bytes=self.first_token_bytes,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )
        if trainer.world_size == 1:
            return score
        dtype = torch.float64 if module.device.type != "mps" else torch.float32
        sums = torch.tensor([score.nats, score.tokens], dtype=dtype, device=module.device)
        sums = trainer.strategy.reduce(sums, reduce_op="sum")
        return Score(float(sums[0]), int(sums[1]), score.bytes)
