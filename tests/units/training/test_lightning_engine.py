"""What is switched off or replaced in Lightning: these fail when a new version of it does something else there."""

import inspect
import os
import signal
import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from torch.optim import adam as optim_adam

from minigpt.config.compose import compose
from minigpt.ranks.signals import Signals
from minigpt.training.run import train
from minigpt.verify import compare_runs


class Look(L.Callback):
    """Looks at the Trainer in the middle of a training."""

    def __init__(self):
        self.handlers = set()
        self.facts = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.handlers.add(signal.getsignal(signal.SIGTERM))
        self.facts = {
            "loggers": trainer.loggers,
            "callbacks": trainer.callbacks,
            "validates": trainer.enable_validation,
            "precision": trainer.precision,
            "plugin": type(trainer._accelerator_connector.cluster_environment).__name__,
            "current epoch": trainer.current_epoch,
        }


def watch(run, *settings):
    look = Look()
    assert train(compose("train", run.arguments(*settings)), callbacks=[look]) == 0
    return look


def test_signals_are_handled_by_us_while_it_trains(run):
    assert {handler.__func__ for handler in watch(run, "trainer.max_steps=2").handlers} == {Signals._note}


def test_its_own_rows_validation_checkpoints_and_bar_are_off(run):
    look = watch(run)
    assert look.facts == {
        "loggers": [],
        "callbacks": [look],
        "validates": False,
        "precision": "32-true",
        "plugin": "JoinedRanks",
        "current epoch": 0,
    }
    assert not list(run.path.rglob("*.ckpt"))


def test_it_asks_about_sigterm_where_it_is_told_not_to():
    """The two private methods that are replaced are there, and Lightning calls them by these names."""
    from lightning.pytorch.loops import training_epoch_loop
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

    assert callable(_SignalConnector.register_signal_handlers)
    assert "self._broadcast_sigterm_tensor()" in Path(training_epoch_loop.__file__).read_text()
    assert callable(training_epoch_loop._TrainingEpochLoop._broadcast_sigterm_tensor)


def test_the_hooks_of_a_step_come_in_the_order_of_step_py(run, monkeypatch):
    from minigpt.training.step import LanguageModel

    calls = []

    def note(place, name):
        real = getattr(place, name)

        def noted(*arguments, **options):
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(place, name, noted)

    for name in ("transfer_batch_to_device", "training_step", "on_before_optimizer_step"):
        note(LanguageModel, name)
    note(LanguageModel, "configure_gradient_clipping")
    note(optim_adam, "adam")  # the update
    note(LanguageModel, "end_step")
    run("trainer.max_steps=1", "trainer.micro_batch=4")
    assert calls == [
        "transfer_batch_to_device", "training_step", "transfer_batch_to_device", "training_step",
        "on_before_optimizer_step", "configure_gradient_clipping", "adam", "adam", "end_step",  # two groups
    ]  # fmt: skip


def test_a_machine_with_slurm_brings_no_hint_to_use_srun(run, monkeypatch, tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.warns(match="`srun` command is available"):  # what Lightning says by itself
        SLURMEnvironment.detect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run("trainer.max_steps=1")
    assert not [each for each in caught if "srun" in str(each.message)]


def test_no_variable_of_another_lightning_job_steers_a_run(run, monkeypatch, tmp_path):
    run("trainer.max_steps=3")
    clean = run.path.rename(tmp_path / "clean")
    absurd = {
        "FAST_DEV_RUN": "1",
        "MAX_TIME": "00:00:00:00",
        "NUM_NODES": "2",
        "LOGGER": "1",
        "PLUGINS": "no such thing",
    }
    for name in inspect.signature(L.Trainer).parameters:
        monkeypatch.setenv(f"PL_TRAINER_{name.upper()}", absurd.get(name.upper(), "1"))
    run("trainer.max_steps=3")
    assert compare_runs(clean, run.path)[1] == []


class Evil:
    def __reduce__(self):
        return open, ("EXECUTED", "w")


def test_no_checkpoint_of_another_job_is_loaded(run, monkeypatch):
    """In a SLURM job Lightning takes the newest hpc_ckpt_N.ckpt of the working folder for the run's."""
    monkeypatch.chdir(run.folder)
    for name, value in {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "train"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Evil(), "hpc_ckpt_1.ckpt")
    run("trainer.max_steps=2")
    assert not Path("EXECUTED").exists()
    assert Path("hpc_ckpt_1.ckpt").exists()
