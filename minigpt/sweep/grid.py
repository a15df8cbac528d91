"""`train -m`: the jobs of a plain grid, one after the other, each a training process of its own. Needs no Optuna.

A process of its own, so that its memory is free again when the next one begins, and what goes wrong in it is its
result. If we are killed, it stops with a checkpoint.
"""

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from minigpt.config.compose import compose
from minigpt.config.grid import FLAGS, Job, expand
from minigpt.config.roles import default_run_dir
from minigpt.faults import MEANINGS, STOPPED, UserFault
from minigpt.process.output import lasting_output
from minigpt.process.signals import SIGNALS
from minigpt.rundir.rows import read_rows
from minigpt.sweep.process import TrainingProcess

POLL_SECONDS = 0.05


def wants_grid(arguments: Sequence[str]) -> bool:
    """Return whether the command line has -m, and doesn't just ask for help."""
    options = {argument.partition("=")[0] for argument in arguments}
    return not options.isdisjoint(FLAGS) and options.isdisjoint(("--help", "-h", "--cfg", "-c"))


def run_grid(arguments: list[str], command: Sequence[str], *, say: Callable[[str], object] = print) -> int:
    """Train each combination of a grid.

    Args:
        arguments: of `train`, with -m.
        command: starts a training when a job's arguments are added.
        say: takes lines for the user.

    Returns:
        0 when all jobs are finished, else the exit code of the first that is not.

    Raises:
        UserFault: a fault in any job, or a grid that is not for -m; nothing has been started.
    """
    jobs, axes = expand(arguments)
    names = [" ".join(each for each in job if each.partition("=")[0].lstrip("+") in axes) for job in jobs]
    folders = run_dirs(jobs, names)
    width = max(len(str(folder)) for folder in folders)
    codes: list[int | None] = []
    with lasting_output(), noted_signals() as received:
        for number, (job, name) in enumerate(zip(jobs, names, strict=True), 1):
            if not received:
                say(f"=== Job {number} of {len(jobs)}: {name or 'as given'}")
            codes.append(None if received else run_job([*command, *job], received))
        say("")
        for number, (code, folder, name) in enumerate(zip(codes, folders, names, strict=True), 1):
            loss = best_loss(folder)
            text = "" if loss is None else f"val/loss {loss:.4f}"
            say(f"{number:>4}  {outcome(code):<38}{text:<18}{folder!s:<{width}}  {name}".rstrip())
        if None in codes or STOPPED in codes:
            say("The same command goes on with what is left.")
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed or (STOPPED if None in codes else 0)


def run_dirs(jobs: Sequence[Job], names: Sequence[str]) -> list[Path]:
    """Return the run directory of each job.

    Raises:
        UserFault: anything is wrong with any of them.
    """
    if "RANK" in os.environ:
        raise UserFault("-m starts one training after the other by itself. Start it without torchrun")
    folders: dict[Path, str] = {}
    faults: dict[str, None] = {}
    for job, name in zip(jobs, names, strict=True):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # a note is given when the job begins
                config = compose("train", job)
        except UserFault as fault:
            faults |= dict.fromkeys(fault.faults)
            continue
        folder = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
        if folder in folders:
            faults[
                f"-m: two jobs would have the same run directory, {folder} ({folders[folder]}, and {name}). Leave out "
                "run.dir and values that are there twice; what changes no weights, like trainer.threads, names no run: "
                "train it one by one, each with a run.dir"
            ] = None
        folders[folder] = name
    if faults:
        raise UserFault(*faults)
    return list(folders)


def run_job(command: Sequence[str], received: list[int]) -> int:
    """Run a training to its end, passing each signal that we receive on to it once; return its exit code."""
    process, sent = TrainingProcess(command), 0
    while (code := process.poll()) is None:
        for number in received[sent:]:
            sent += 1
            process.send(number)
        time.sleep(POLL_SECONDS)
    return STOPPED if code < 0 and received else code  # it had no handler yet


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list that receives the signals that come inside a `with` block."""
    received: list[int] = []
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome(code: int | None) -> str:
    """Say how a job ended."""
    if code is None:
        return "not begun"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    meaning = MEANINGS.get(code, f"exit code {code}").partition(",")[0]
    return meaning if code in (0, STOPPED) or meaning.startswith("stopped") else f"failed ({meaning})"


def best_loss(run: Path) -> float | None:
    """Return the lowest val/loss in a run's metrics.jsonl."""
    losses = (row.get("val/loss") for row in read_rows(run / "metrics.jsonl"))
    return min((loss for loss in losses if isinstance(loss, float)), default=None)
