"""The body of a SLURM array job whose every element is one more worker of a sweep."""

import os
import shlex
from pathlib import Path

from minigpt.invocation import command_line
from minigpt.redact import redact_arguments
from minigpt.rundir.files import write_file
from minigpt.sweep.settings import Plan

BODY = """\
#!/bin/bash
# Each element of this array is {workers} worker(s) of one sweep; they share its directory. Submit it with
#   sbatch {file}
# and again at any time for more workers, or to go on after a time limit.
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
{gpus}#SBATCH --time=08:00:00
#SBATCH --output={folder}/slurm-%A_%a.txt
#SBATCH --requeue
# Two minutes before the time is up: every trial stops with a checkpoint, and the job is queued again.
#SBATCH --signal=B:USR1@120

cd {here} || exit 2
{command} &
worker=$!
trap 'kill -USR1 "$worker"' USR1
trap 'kill -TERM "$worker"' TERM
# wait returns when a signal comes; the worker ends a little later.
while kill -0 "$worker" 2>/dev/null; do wait "$worker"; outcome=$?; done
exit "$outcome"
"""


def write_slurm_script(plan: Plan) -> Path:
    """Write sweep.sbatch into the sweep's directory, to be looked through (partition, time) and submitted."""
    file = plan.folder / "sweep.sbatch"
    devices = plan.config.workers * plan.base.trainer.devices
    on_cpu = plan.base.trainer.device in ("cpu", "mps")
    text = BODY.format(
        workers=plan.config.workers,
        file=shlex.quote(str(file)),
        name=plan.name.replace(" ", "-"),
        last=max(0, min(plan.trials, 4) - 1),
        cpus=max(4 * devices, 1),
        gpus="" if on_cpu else f"#SBATCH --gpus={devices}\n",
        folder=plan.folder,
        here=shlex.quote(os.getcwd()),
        command=shlex.join([*command_line("sweep"), *redact_arguments(plan.typed)]),
    )
    write_file(file, text)
    return file
