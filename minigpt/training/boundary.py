"""Where one optimizer step ends and the next has not begun: the only place where anything else happens."""

import lightning as L

from minigpt.config.schema import TrainConfig
from minigpt.training.module import LanguageModel
from minigpt.training.state import RunState


def at_step_end(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether micro-batch `batch_idx` (counted from where this process began) was the last of its step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def is_last_step(module: LanguageModel) -> bool:
    """Whether the run is complete: all steps made, or ended for good by a limit or patience."""
    return module.position.step == module.total_steps or module.stop_reason in ("max_minutes", "patience")


def is_due(module: LanguageModel, every_steps: int) -> bool:
    """Whether something that comes every so many steps comes now."""
    return every_steps > 0 and module.position.step % every_steps == 0


def out_of_patience(position: RunState, config: TrainConfig) -> bool:
    """Whether `trainer.patience` validations have passed since the best one."""
    allowed = config.trainer.patience * config.validate.every_steps
    return allowed > 0 and position.step - position.best_step >= allowed


def end_of(position: RunState, total_steps: int | None, config: TrainConfig) -> str | None:
    """The limit that a run standing at `position` has reached, or None if it goes on."""
    minutes = config.trainer.max_minutes
    if total_steps is not None and position.step >= total_steps:
        return "max_tokens" if config.trainer.max_tokens is not None else "max_steps"
    if minutes is not None and position.seconds >= 60 * minutes:
        return "max_minutes"
    return "patience" if out_of_patience(position, config) else None
