"""`scripts/train.py -m`: the jobs of a plain grid, one after the other, each a training process of its own.

A process of its own, so that its memory is free again when the next one begins, and what goes wrong in it is its
result.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from minigpt.config.compose import compose
from minigpt.config.grid import FLAGS, Job, expand, sweep_command
from minigpt.config.roles import default_run_dir
from minigpt.faults import INTERRUPTED, STOPPED, UserFault
from minigpt.process.output import lasting_output
from minigpt.rundir.rows import read_rows

MEANINGS = {0: "finished", 1: "failed (a bug)", 2: "failed (settings or data)", 3: "failed (no usable checkpoint)",
            4: "failed (storage)", 5: "failed (not finite)", STOPPED: "stopped", INTERRUPTED: "stopped"}  # fmt: skip


@dataclass
class Running:
    """The job that runs, and the signals that came."""

    process: subprocess.Popen | None = None
    stop: bool = False  # one came
    waiting: deque[int] = field(default_factory=deque)  # that the job has not got yet

    def note(self, number: int, frame: FrameType | None) -> None:
        """A signal to us is one to the job, once; it knows what to do."""
        self.stop = True
        self.waiting.append(number)
        self.pass_on()

    def pass_on(self) -> None:
        """Send what waits to the job, if there is one. Another signal may come in the middle of it."""
        while self.process is not None and self.waiting:
            with contextlib.suppress(IndexError, ProcessLookupError):
                self.process.send_signal(self.waiting.popleft())


def wants_grid(arguments: Sequence[str]) -> bool:
    """Whether the command line has -m, and doesn't just ask for help."""
    options = {argument.partition("=")[0] for argument in arguments}
    return not options.isdisjoint(FLAGS) and options.isdisjoint(("--help", "-h", "--cfg", "-c"))


def run_grid(arguments: list[str], command: Sequence[str], *, say: Callable[[str], object] = print) -> int:
    """Train each combination of a grid.

    Args:
        arguments: of scripts/train.py, with -m.
        command: starts a training when a job's arguments are added.
        say: takes lines for the user.

    Returns:
        0 when all jobs are finished, else the exit code of the first that is not.

    Raises:
        UserFault: a fault in any job, or a grid that is not for -m; nothing has been started.
    """
    jobs, axes = expand(arguments)
    folders = run_dirs(jobs, arguments, axes)
    codes: list[int | None] = []
    with lasting_output(), signals_passed_on() as running:
        for number, job in enumerate(jobs, 1):
            if not running.stop:
                say(f"=== Job {number} of {len(jobs)}: {differing(job, axes) or 'as given'}")
            codes.append(None if running.stop else run_job([*command, *job], running))
        say("")
        for line in summary(jobs, folders, codes, axes):
            say(line)
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed or (STOPPED if None in codes else 0)


def summary(
    jobs: Sequence[Job], folders: Sequence[Path], codes: Sequence[int | None], axes: Mapping[str, Any]
) -> list[str]:
    """How each job ended, its best validation, and where it is."""
    width = max(len(str(folder)) for folder in folders)
    lines = []
    for number, (job, folder, code) in enumerate(zip(jobs, folders, codes, strict=True), 1):
        loss = best_loss(folder)
        text = "" if loss is None else f"val/loss {loss:.4f}"
        lines.append(f"{number:>4}  {outcome(code):<28}{text:<18}{folder!s:<{width}}  {differing(job, axes)}".rstrip())
    if None in codes or STOPPED in codes:
        lines.append("The same command goes on with what is left.")
    return lines


def run_dirs(jobs: Sequence[Job], arguments: list[str], axes: Mapping[str, Any]) -> list[Path]:
    """Where each job's run is; everything that can be wrong is named here.

    Raises:
        UserFault: it is.
    """
    if "RANK" in os.environ:
        raise UserFault("-m starts one training after the other by itself. Start it without torchrun")
    folders: dict[Path, Job] = {}
    faults: dict[str, None] = {}
    for job in jobs:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # a note is given when the job begins
                config = compose("train", job)
        except UserFault as fault:
            faults |= dict.fromkeys(fault.faults)
            continue
        if config.trainer.devices > 1:
            raise UserFault(
                f"-m trains on one device, and trainer.devices={config.trainer.devices}. "
                f"A sweep does it on several: {sweep_command(arguments, axes)}"
            )
        folder = Path(os.path.expanduser(config.run.dir or default_run_dir(config)))
        twin = folders.setdefault(folder, job)
        if twin is not job:
            faults[
                f"-m: two jobs would have the same run directory, {folder} ({differing(twin, axes)}, and "
                f"{differing(job, axes)}). Leave out run.dir, and values that are twice the same"
            ] = None
    if faults:
        raise UserFault(*faults)
    return list(folders)


def run_job(command: Sequence[str], running: Running) -> int:
    """Run a training to its end and give its exit code.

    It has a process group of its own, so that a Ctrl-C reaches it once: through us.
    """
    sys.stdout.flush()
    running.process = subprocess.Popen(command, process_group=0)
    running.pass_on()  # what came just before it was there
    code = running.process.wait()
    running.process = None
    return STOPPED if code < 0 and running.stop else code  # it was not listening yet


@contextlib.contextmanager
def signals_passed_on() -> Iterator[Running]:
    """In a `with` block signals go to the job that runs."""
    running = Running()
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, running.note) for number in numbers}
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def differing(job: Job, axes: Mapping[str, Any]) -> str:
    """What sets a job apart from the others."""
    return " ".join(each for each in job if each.partition("=")[0].lstrip("+") in axes)


def outcome(code: int | None) -> str:
    """How a job ended."""
    if code is None:
        return "not begun"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return MEANINGS.get(code, f"failed (exit code {code})")


def best_loss(run: Path) -> float | None:
    """The lowest val/loss in a run's metrics.jsonl."""
    losses = (row.get("val/loss") for row in read_rows(run / "metrics.jsonl"))
    return min((loss for loss in losses if isinstance(loss, float)), default=None)
