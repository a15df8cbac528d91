"""The row of a logged step: loss, gradient norm, learning rate and speed."""

import math
from typing import Any

import lightning as L

from minigpt.rundir.remote_logger import RemoteLogger
from minigpt.rundir.rows import RowFile
from minigpt.training.boundary import at_step_end, is_due, is_last_step
from minigpt.training.module import LanguageModel


class Measure(L.Callback):
    """Begins the step's row: loss, gradient norm, learning rate and speed.

    Args:
        flops_per_token: forward and backward FLOPs.
        peak: the devices' FLOP/s together; None when unknown.
    """

    def __init__(self, flops_per_token: float, peak: float | None):
        self.flops_per_token = flops_per_token
        self.peak = peak
        self.last_step: int | None = None
        self.last_seconds = 0.0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not at_step_end(trainer, batch_idx):
            return
        step = pl_module.position.step
        due = is_due(pl_module, pl_module.config.logger.every_steps) or step == 1
        due = due or is_due(pl_module, pl_module.config.validate.every_steps) or is_last_step(pl_module)
        pl_module.row = self.row(pl_module) if due else {}

    def row(self, module: LanguageModel) -> dict[str, Any]:
        """The row of the step just made."""
        step, batch_tokens = module.position.step, module.config.batch_tokens
        seconds = module.clock.seconds
        speed = None
        if self.last_step is not None and seconds > self.last_seconds:
            speed = (step - self.last_step) * batch_tokens / (seconds - self.last_seconds)
        self.last_step, self.last_seconds = step, seconds
        return {
            "step": step,
            "tokens": step * batch_tokens,
            "train/loss": module.loss if math.isfinite(module.loss) else None,
            "train/grad_norm": module.grad_norm if math.isfinite(module.grad_norm) else None,
            "lr": module.lr,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(speed, 1) if speed else None,
            "mfu": round(speed * self.flops_per_token / self.peak, 4) if speed and self.peak else None,
        }


class MetricsFile(L.Callback):
    """Writes the step's row to metrics.jsonl, and hands it to the logger on top if there is one (rank 0 only)."""

    def __init__(self, file: RowFile, remote: RemoteLogger | None = None):
        self.file = file
        self.remote = remote

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_global_zero and pl_module.row and at_step_end(trainer, batch_idx):
            self.file.add(pl_module.row)
            if self.remote is not None:
                self.remote.log(pl_module.position.step, pl_module.row)

    def on_exception(self, trainer: L.Trainer, pl_module: LanguageModel, exception: BaseException) -> None:
        wants_out = isinstance(exception, KeyboardInterrupt)  # and is not kept waiting
        if self.remote is not None and not wants_out:
            self.remote.close()

    def teardown(self, trainer: L.Trainer, pl_module: LanguageModel, stage: str) -> None:
        if self.remote is not None:
            self.remote.close()
