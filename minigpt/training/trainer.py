"""The Lightning Trainer and its callbacks, in the one order that makes a run exact."""

import logging
import os
import warnings
from typing import Any

import lightning as L
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy

from minigpt.config.schema import TrainConfig
from minigpt.machine.choices import Choices


def quiet_lightning() -> None:
    """Keep Lightning's tips and notices off the screen; its warnings stay, but for those that don't apply."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # reading a memory map needs none
        ".*`training_step` returned `None`.*",
        ".*GPU available but not used.*",
        ".*no `val_dataloader`.*",
        ".*isn't tracked by.*",
        ".*checkpoints directory.*",
        ".*isinstance.treespec, LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", message=message)


class FormedAlready(LightningEnvironment):
    """The processes are there and their group is formed (processes.py), whoever started them.

    Given explicitly, so that Lightning looks for no torchrun or SLURM of its own, and takes no signal for it.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True


def build_trainer(
    config: TrainConfig, choices: Choices, *, total_steps: int | None, callbacks: list[L.Callback]
) -> L.Trainer:
    """A Trainer that only turns the crank: no epochs, validation loop, checkpoints, logger or bar of its own.

    Precision is 32-true because the model's autocast is ours (module.py); clipping and learning rate are hooks
    of the module.
    """
    strategy: Any = "auto"
    if choices.devices > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(choices.threads))  # else Lightning sets a number of its own
    if config.trainer.strategy == "ddp":
        backend = "cpu:gloo,cuda:nccl" if choices.device == "cuda" else "gloo"
        strategy = DDPStrategy(process_group_backend=backend, gradient_as_bucket_view=True)
    trainer = L.Trainer(
        accelerator="gpu" if choices.device == "cuda" else choices.device,
        devices=choices.devices,
        strategy=strategy,
        precision="64-true" if choices.precision == "fp64" else "32-true",
        max_steps=total_steps if total_steps is not None else -1,
        max_epochs=-1,
        accumulate_grad_batches=choices.accumulate,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        deterministic=True if config.trainer.deterministic else None,
        plugins=[FormedAlready()],
    )
    leave_signals_alone(trainer)
    return trainer


def call_callbacks(trainer: L.Trainer, hook: str, *arguments: Any) -> None:
    """Call a hook of every callback, in their order, as Lightning's own loops do."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        getattr(callback, hook)(trainer, trainer.lightning_module, *arguments)


def leave_signals_alone(trainer: L.Trainer) -> None:
    """Signals are ours (signals.py). Lightning's handler runs collectives, and each micro-batch asks about it in one.

    There is no switch for either; tests/training/test_stops.py fails when a new version calls them otherwise.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
