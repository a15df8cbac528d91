"""SLURM: asking it to run this job again, and the script that a job is submitted with."""

import os
import shlex
import shutil
import string
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from minigpt.config.commands import SlurmConfig
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import write_file
from minigpt.redact import redact_arguments

SIGNAL_SECONDS = 120  # the signal comes so long before a job's time limit
PATIENCE_SECONDS = 30  # for scontrol to answer


def requeue(say: Callable[[str], None], *, asked: bool) -> None:
    """Have SLURM run this job again, if the process belongs to one; its work must have been saved before.

    SIGTERM comes when a job is preempted and when a user cancels it; SLURM's record of the job tells which. A job that
    was cancelled is never brought back.

    Args:
        say: takes a line for the user.
        asked: whether SIGUSR1 came, which a job's script asks for before the time limit. Otherwise the job is queued
            again only if SLURM reports that it preempts it.
    """
    job = job_id()
    if not job:  # also in trials of a sweep, which asks for itself and hides the job from them
        return
    if shutil.which("scontrol") is None:
        if asked:
            say("SLURM: there is no scontrol here to queue the job again; submit it again, or type the same command")
        return
    shown, _ = _scontrol("show", "job", "--oneliner", job)
    facts = {key: value for key, _, value in (word.partition("=") for word in shown.split())}
    preempted = facts.get("PreemptTime", "None") not in ("None", "Unknown")
    if facts.get("JobState") == "CANCELLED" or not (asked or preempted):
        return
    _, trouble = _scontrol("requeue", job)
    if trouble:
        say(f"SLURM: `scontrol requeue {job}` failed: {trouble}")
    else:
        say(f"SLURM: job {job} is queued again" + ("" if asked else ": it was preempted"))


def job_id() -> str | None:
    """Return SLURM's name of the job that this process belongs to, or None."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else os.environ.get("SLURM_JOB_ID")


def _scontrol(*arguments: str) -> tuple[str, str]:
    """Return what scontrol printed, and what went wrong, "" if nothing did."""
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout, (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def job_script(about: Sequence[str], options: Mapping[str, str | int | None], body: Sequence[str]) -> str:
    """Return the text of a script for sbatch.

    Args:
        about: comments on top.
        options: of sbatch, without dashes; those that are None are left out. `signal` is explained.
        body: lines of shell.
    """
    lines = ["#!/bin/bash", *(f"# {line}" for text in about for line in text.splitlines())]
    for name, value in options.items():
        if name == "signal":
            lines.append(
                f"# {SIGNAL_SECONDS} s before the time is up: a checkpoint is saved, and the job is queued again."
            )
        if value is not None:
            lines.append(f"#SBATCH --{name}={value}" if value != "" else f"#SBATCH --{name}")
    return "\n".join([*lines, "", *body]) + "\n"


def write_train_script(config: SlurmConfig, command: Sequence[str], typed: str) -> str:
    """Write the script of a training, with all of its processes in one job step, which SLURM's signals reach.

    Args:
        config: the job, and the training's devices.
        command: the words that start the training.
        typed: the command that asked for the script.

    Returns:
        A message for the user.

    Raises:
        UserFault: a word of the command holds a password or key, or an option of sbatch has a blank in it.
        StorageFailure: the script can't be written.
    """
    if redact_arguments(list(command)) != list(command):
        raise UserFault("a setting holds a password or key, which a script must not hold. Use environment variables")
    for name in ("name", "time", "partition", "account"):
        value = getattr(config.job, name)
        if value is not None and (not value or set(value) & set(string.whitespace)):
            raise UserFault(f"job.{name}={value!r}: sbatch takes one word without a blank. Give another")
    job, trainer = config.job, config.trainer
    on_gpus = trainer.device in ("auto", "cuda")
    # On several nodes each process is a task; on one the first starts the others.
    tasks = trainer.devices if trainer.nodes > 1 else 1
    cpus = trainer.devices // tasks * (job.cpus or (8 if on_gpus else trainer.threads or 2))
    about = [
        f"Written by: {typed}",
        f"Submit it with: sbatch {shlex.quote(job.file)}; again, and the run goes on from its last checkpoint.",
    ]
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
        "requeue": "",
        "signal": f"USR1@{SIGNAL_SECONDS}",
    }
    start = f"exec srun {'--distribution=block ' * (trainer.nodes > 1)}--cpus-per-task={cpus} {shlex.join(command)}"
    body = [f"cd {shlex.quote(os.getcwd())} || exit 2", *([job.setup] if job.setup else []), start]
    try:
        write_file(Path(os.path.expanduser(job.file)), job_script(about, options, body))
    except OSError as error:
        wrong = f"job.file={job.file} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Name a file in a folder that is there") from None
    return f"Wrote {job.file}. Look through it, then:\n  sbatch {shlex.quote(job.file)}"
