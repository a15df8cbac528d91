"""Lightning's Trainer as the engine: what is switched off or replaced in it, each with its reason."""

import logging
import os
import warnings
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from minigpt.config.schema import TrainConfig
from minigpt.machine.choices import Choices


def quiet_lightning() -> None:
    """Silence Lightning's tips and the warnings that do not apply here."""
    for room in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(room).setLevel(logging.WARNING)
    # The view is of the logits without padding; nothing changes them in place.
    for words in ("GPU available but not used", "isinstance.treespec, LeafSpec", "FSDP2-wrapped.*returned a view"):
        warnings.filterwarnings("ignore", f".*{words}")


class JoinedRanks(LightningEnvironment):
    """The environment of processes that have formed their group already (ranks/group.py).

    It is given explicitly: otherwise Lightning would look for torchrun or SLURM, handle their signals, and read ranks
    from variables that another job may have left behind.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def __init__(self, devices: int):
        super().__init__()
        self.devices = devices  # of a host

    def local_rank(self) -> int:
        return dist.get_rank() % self.devices if dist.is_initialized() else 0

    def node_rank(self) -> int:
        return dist.get_rank() // self.devices if dist.is_initialized() else 0

    def teardown(self) -> None:
        """Leave WORLD_SIZE as it is: Lightning would delete it."""


def build_trainer(config: TrainConfig, choices: Choices, *, steps: int, callbacks: list[L.Callback]) -> L.Trainer:
    """Return a Trainer that only makes optimizer steps: `steps` of them, or without end (-1)."""
    strategy: Any = "auto"
    backend = "cpu:gloo,cuda:nccl" if choices.device == "cuda" else "gloo"
    if choices.devices > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(choices.threads))  # else Lightning sets a number of its own
    if config.trainer.strategy == "ddp":
        strategy = DDPStrategy(process_group_backend=backend, gradient_as_bucket_view=True)
    elif config.trainer.sharded:
        # Its sizes are given: with "auto" the devices of a node would work on one batch, and train wrongly.
        strategy = ModelParallelStrategy(choices.devices, 1, process_group_backend=backend)
    trainer = L.Trainer(
        accelerator="gpu" if choices.device == "cuda" else choices.device,
        devices=config.trainer.devices,
        num_nodes=config.trainer.nodes,
        strategy=strategy,
        # Autocast is ours (step.py): Lightning refuses fused AdamW with clipping in mixed precision.
        # Sharded weights are in fp64 already, and Lightning refuses to convert them.
        precision="64-true" if choices.precision == "fp64" and not config.trainer.sharded else "32-true",
        max_steps=steps,
        max_epochs=1,  # without end: a StopIteration that a callback lets pass ends the training
        accumulate_grad_batches=choices.accumulate,
        # Validation belongs to a step's end (step.py): a kill between a save and a later validation would lose it.
        limit_val_batches=0,
        num_sanity_val_steps=0,
        # Rows, checkpoints and the progress line are ours: checkpoints without pickle, exact where a run continues.
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        use_distributed_sampler=False,  # batches know their rank
        deterministic=True if config.trainer.deterministic else None,
        plugins=[JoinedRanks(config.trainer.devices)],
    )
    # Signals are handled by ranks/signals.py. Lightning's handlers run collectives, and one more before each
    # micro-batch asks whether SIGTERM came; there is no switch for either.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    # In a SLURM job `fit` would load any hpc_ckpt_N.ckpt, a pickle, that lies in the working folder.
    trainer._checkpoint_connector._parse_ckpt_path = lambda *_, **__: None  # type: ignore[method-assign]
    # At the end it would bring the weights to the host, one blocking copy for each tensor: the last save has them.
    trainer.strategy.teardown = trainer.accelerator.teardown  # type: ignore[method-assign]
    return trainer


def call_callbacks(trainer: L.Trainer, hook: str, *arguments: Any) -> None:
    """Call a hook of every callback in order, as Lightning's disabled loops would."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        getattr(callback, hook)(trainer, trainer.lightning_module, *arguments)


def publish(trainer: L.Trainer, row: dict[str, Any]) -> None:
    """Put a row's numbers into `trainer.callback_metrics`, where callbacks look for them."""
    numbers = {name: torch.tensor(value) for name, value in row.items() if isinstance(value, int | float)}
    trainer._logger_connector._callback_metrics.update(numbers)
