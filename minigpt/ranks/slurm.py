"""SLURM: asking it to run this job again, and the script that a job is submitted with."""

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from minigpt.config.commands import SlurmConfig
from minigpt.faults import UserFault
from minigpt.files import write_file, writing
from minigpt.redact import redact_arguments

SIGNAL_SECONDS = 120  # the signal comes so long before a job's time limit
PATIENCE_SECONDS = 30  # for scontrol to answer


def requeue(say: Callable[[str], object], *, asked: bool) -> None:
    """Have SLURM run this job again, if the process belongs to one; its work must have been saved before.

    SIGTERM comes when a job is preempted and when a user cancels it; SLURM's record of the job tells which.

    `asked`: SIGUSR1 came, before the time limit. Without it only a job that is preempted is queued again.
    """
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else os.environ.get("SLURM_JOB_ID")
    if not job:  # also in trials of a sweep, which hides the job from them
        return
    scontrol = functools.partial(subprocess.run, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    try:
        record = scontrol(["scontrol", "show", "job", "--oneliner", job]).stdout
        preempted = re.search(r"PreemptTime=(?!None|Unknown)", record)
        if "JobState=CANCELLED" in record or not (asked or preempted):
            return
        scontrol(["scontrol", "requeue", job], check=True)
        say(f"SLURM: job {job} is queued again" + ("" if asked else ": it was preempted"))
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        say(f"SLURM: `scontrol requeue {job}` failed: {reason}. Submit the job again")


def write_train_script(config: SlurmConfig, command: Sequence[str], typed: str) -> str:
    """Write the script of a training, whose processes form one job step; return a message for the user.

    `command` starts the training; `typed` is the command that writes the script.
    """
    if redact_arguments(list(command)) != list(command):
        raise UserFault("a setting holds a password or key, which a script must not hold. Use environment variables")
    job, trainer = config.job, config.trainer
    on_gpus = trainer.device in ("auto", "cuda")
    # On several nodes each process is a task; on one the first starts the others.
    tasks = trainer.devices if trainer.nodes > 1 else 1
    cpus = trainer.devices // tasks * (job.cpus or (8 if on_gpus else trainer.threads or 2))
    options = {
        "job-name": job.name or config.experiment.replace("/", "-"),
        "partition": job.partition,
        "account": job.account,
        "nodes": trainer.nodes,
        "ntasks-per-node": tasks,
        "cpus-per-task": cpus,
        "gpus-per-node": trainer.devices if on_gpus else None,
        "time": job.time,
        "output": "%x-%j.txt",
        "open-mode": "append",
        "signal": f"USR1@{SIGNAL_SECONDS}",
    }
    several = "--distribution=block --kill-on-bad-exit=1 " * (trainer.nodes > 1)
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in f"Written by: {typed}".splitlines()),
        f"# {SIGNAL_SECONDS} s before the time is up a checkpoint is saved, and the job is queued again.",
        *(f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None),
        "#SBATCH --requeue",
        "",
        f"cd {shlex.quote(os.getcwd())} || exit 2",
        *([job.setup] if job.setup else []),
        f"exec srun {several}--cpus-per-task={cpus} {shlex.join(command)}",
    ]
    with writing(f"job.file={job.file}"):
        write_file(Path(os.path.expanduser(job.file)), "\n".join(lines) + "\n")
    return f"Wrote {job.file}. Look through it, then:\n  sbatch {shlex.quote(job.file)}"
