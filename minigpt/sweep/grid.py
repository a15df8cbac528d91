"""`train -m`: the jobs of a plain grid, one after the other, each a training process of its own. Needs no Optuna.

In a process of its own its memory is free when the next job begins, and a failure is only its own result. If this
process is killed, the training stops with a checkpoint.
"""

import contextlib
import io
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from minigpt.children import Child
from minigpt.config.command_line import MULTIRUN, Job, expand_lists
from minigpt.config.compose import compose, first_stage
from minigpt.config.run_names import default_run_dir
from minigpt.faults import FINISHED, INTERRUPTED, MEANINGS, STOPPED, UserFault
from minigpt.ranks.signals import Signals
from minigpt.rundir.rows import read_rows
from minigpt.screen import table, tell


def wants_grid(arguments: Sequence[str]) -> bool:
    """Return whether the command line has -m, and doesn't just ask for help."""
    options = {argument.partition("=")[0] for argument in arguments}
    return not options.isdisjoint(MULTIRUN) and options.isdisjoint(("--help", "-h", "--cfg", "-c"))


def run_grid(arguments: list[str], command: Sequence[str]) -> int:
    """Train each combination of a grid.

    Returns:
        0 when all jobs are finished, else the exit code of the first that is not.
    """
    jobs = expand_lists(arguments)
    folders = run_dirs(jobs)
    codes: list[int | None] = []
    with Signals() as signals:
        signals.noted_only = signals.quiet = True  # the training prints that it stops
        for number, (job, name) in enumerate(jobs, 1):
            if signals.received is not None:
                codes.append(None)
                continue
            tell(f"=== Job {number} of {len(jobs)}: {name or 'as given'}")
            training = Child([*command, *job])
            while (code := training.wait(0.1)) is None:
                if signals.received is not None:
                    training.stop(signals.received)
            # negative if it had no handler yet
            codes.append(STOPPED if code < 0 and signals.received is not None else code)
    rows = []
    for job_code, folder, (_, name) in zip(codes, folders, jobs, strict=True):
        losses = [row["val/loss"] for row in read_rows(folder / "metrics.jsonl") if row.get("val/loss") is not None]
        rows.append([outcome(job_code), f"val/loss {min(losses):.4f}" if losses else "", str(folder), name])
    tell(f"\n{table(rows)}")
    if None in codes or STOPPED in codes:
        tell("The same command does what is left.")
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed or (STOPPED if None in codes else 0)


def run_dirs(jobs: Sequence[tuple[Job, str]]) -> list[Path]:
    """Return the run directory of each job; no two may be the same."""
    folders: dict[Path, str] = {}
    faults: list[str] = []
    for job, name in jobs:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # notes are printed when the job begins
                config = compose("train", job)
                before = first_stage(config, job)
        except UserFault as fault:
            faults += fault.faults
            continue
        if before is not None:  # a run's name depends on what it starts from
            config.init.source = before.run.dir or default_run_dir(before)
        folder = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
        if folder in folders:
            same = f"-m: {folders[folder]} and {name} would have the same run directory, {folder}"
            faults.append(f"{same}. Leave out run.dir, values that are there twice, and what changes no weights")
        folders[folder] = name
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    return list(folders)


def outcome(code: int | None) -> str:
    """Return how a job ended."""
    if code is None or code < 0:
        return "not begun" if code is None else f"killed by {signal.Signals(-code).name}"
    meaning = MEANINGS.get(code, f"exit code {code}")
    return meaning if code in (FINISHED, STOPPED, INTERRUPTED) else f"failed ({meaning})"
