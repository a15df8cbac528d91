"""Clean stops: a signal is obeyed, and the time limit kept, where an optimizer step ends."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L

from minigpt.process.signals import Signals
from minigpt.training.boundary import at_step_end
from minigpt.training.module import LanguageModel


class Stopping(L.Callback):
    """Counts the steps, and decides whether the run ends after this one.

    A signal ends it with a checkpoint (see signals.py), `max_minutes` ends it for good. With several processes
    each says what it wants, all obey together: the wishes travel with the step's loss (module.share).

    Args:
        signals: what came.
        stop_file: whoever makes this file asks as a signal would; it goes when it is obeyed. None: nobody can.
    """

    def __init__(self, signals: Signals, stop_file: Path | None = None):
        self.signals = signals
        self.stop_file = stop_file

    def on_train_start(self, trainer: L.Trainer, pl_module: LanguageModel) -> None:
        self.signals.noted_only = True
        pl_module.wishes = lambda: self.wishes(pl_module)
        pl_module.clock.start()

    def wishes(self, module: LanguageModel) -> list[bool]:
        """What this process wants: to stop, to be queued again, to end for good."""
        received, minutes = self.signals.received, module.config.trainer.max_minutes
        asked = self.stop_file is not None and os.path.exists(self.stop_file)
        out_of_time = minutes is not None and module.clock.seconds >= 60 * minutes
        return [asked or received is not None, received == getattr(signal, "SIGUSR1", None) is not None, out_of_time]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not at_step_end(trainer, batch_idx):
            return
        pl_module.position.step += 1
        signalled, requeue, out_of_time = self.wishes(pl_module) if trainer.world_size == 1 else pl_module.agreed
        if out_of_time:
            pl_module.stop_reason = "max_minutes"
        elif signalled and pl_module.position.step != pl_module.total_steps:
            pl_module.stop_reason = "signal"
            pl_module.requeue = requeue
            if self.stop_file is not None:
                self.stop_file.unlink(missing_ok=True)
        trainer.should_stop = pl_module.stop_reason is not None

    def teardown(self, trainer: L.Trainer, pl_module: LanguageModel, stage: str) -> None:
        pl_module.clock.stop()


def requeue_slurm_job(say: Callable[[str], None]) -> None:
    """Ask SLURM to run this job again, if it is one. (Lightning's own way saves inside the signal handler.)"""
    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if job else os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    command = ["scontrol", "requeue", job]
    if shutil.which(command[0]) is None:
        say("SLURM: there is no scontrol here to queue the job again; #SBATCH --requeue or the same command does it")
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        reason = done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    say(f"SLURM: job {job} is queued again" if reason is None else f"SLURM: `{' '.join(command)}` failed: {reason}")
