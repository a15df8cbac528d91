"""A SLURM array that prepares tokens in parts (`prepare.slurm=N`)."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from minigpt.faults import StorageFailure, UserFault
from minigpt.files import write_file
from minigpt.redact import redact_arguments

CORES = 8  # of a task, where `prepare.workers` does not say


def write_array(folder: Path, command: Sequence[str], arguments: Sequence[str], *, parts: int, workers: int) -> Path:
    """Write the script for `sbatch` into a folder that all nodes share, and return its path.

    Args:
        folder: data.dir.
        command: starts `minigpt prepare`.
        arguments: that the user has typed.
        parts: tasks of the array.
        workers: processes of a task; 0: CORES.

    Raises:
        UserFault: an argument holds a password or key.
        StorageFailure: it can't be written.
    """
    own = [each for each in arguments if each.partition("=")[0] not in ("prepare.slurm", "prepare.part")]
    if redact_arguments(own) != own:
        raise UserFault("data.source holds a password or key, which a script must not hold. Use environment variables")
    text = f"""#!/bin/sh
# Each task encodes one of {parts} parts of the text; the last one to end puts them together. A task that was killed
# is run again: what it had encoded is kept.
#SBATCH --job-name=minigpt-prepare
#SBATCH --array=1-{parts}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={workers or CORES}
#SBATCH --output={folder.absolute()}/prepare-%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
cd {shlex.quote(str(Path.cwd()))} || exit 1
exec {shlex.join([*command, *own])} prepare.part="$SLURM_ARRAY_TASK_ID/{parts}"
"""
    path = folder / "prepare.sbatch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
    except OSError as error:
        raise StorageFailure(f"{path} can't be written: {error.strerror}. Name another folder: data.dir=DIR") from None
    return path
