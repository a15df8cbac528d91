"""What is switched off or replaced in Lightning: these fail when a new version of it does something else there."""

from pathlib import Path

import lightning as L
import torch


class Look(L.Callback):
    """Looks at the Trainer in the middle of a training."""

    def __init__(self):
        self.facts = ()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        plugin = type(trainer._accelerator_connector.cluster_environment).__name__
        self.facts = trainer.loggers, trainer.callbacks, trainer.enable_validation, trainer.precision, plugin
        self.epoch = trainer.current_epoch


def test_its_own_rows_validation_checkpoints_and_bar_are_off(run):
    look = Look()
    run(callbacks=[look])
    assert look.facts == ([], [look], False, "32-true", "JoinedRanks")
    assert look.epoch == 0
    assert not list(run.path.rglob("*.ckpt"))


def test_it_asks_about_sigterm_where_it_is_told_not_to():
    """The two private methods that are replaced are there, and Lightning calls them by these names."""
    from lightning.pytorch.loops import training_epoch_loop
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

    assert callable(_SignalConnector.register_signal_handlers)
    assert "self._broadcast_sigterm_tensor()" in Path(training_epoch_loop.__file__).read_text()
    assert callable(training_epoch_loop._TrainingEpochLoop._broadcast_sigterm_tensor)


class Evil:
    def __reduce__(self):
        return open, ("EXECUTED", "w")


def test_no_checkpoint_of_another_job_is_loaded(run, folder, monkeypatch):
    """In a SLURM job Lightning takes the newest hpc_ckpt_N.ckpt of the working folder for the run's."""
    for name, value in {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "train"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Evil(), "hpc_ckpt_1.ckpt")
    run("trainer.max_steps=2")
    assert not Path("EXECUTED").exists()
    assert Path("hpc_ckpt_1.ckpt").exists()
