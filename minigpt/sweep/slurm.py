"""sweep.sbatch: the body of a SLURM array job whose every element is one more worker of a sweep."""

import os
import shlex
from pathlib import Path

from minigpt.invocation import command_line
from minigpt.redact import redact_arguments
from minigpt.rundir.files import write_file
from minigpt.sweep.settings import Sweep

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


def write_slurm_script(sweep: Sweep) -> Path:
    """Write sweep.sbatch into the sweep's directory, to be looked through (partition, time) and submitted."""
    file = sweep.folder / "sweep.sbatch"
    devices = sweep.config.workers * sweep.config.trainer.devices
    on_cpu = sweep.config.trainer.device in ("cpu", "mps")
    text = BODY.format(
        workers=sweep.config.workers,
        file=shlex.quote(str(file)),
        name=sweep.name.replace(" ", "-"),
        last=max(0, min(sweep.trials, 4) - 1),
        cpus=max(4 * devices, 1),
        gpus="" if on_cpu else f"#SBATCH --gpus={devices}\n",
        folder=sweep.folder,
        here=shlex.quote(os.getcwd()),
        command=shlex.join([*command_line("sweep"), *redact_arguments(sweep.arguments)]),
    )
    write_file(file, text)
    return file
