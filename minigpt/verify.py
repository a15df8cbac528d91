"""`minigpt verify-resume`: a run killed at random moments must end with the bytes of one that was not."""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minigpt.checkpoint.store import list_checkpoints, step_of
from minigpt.config.compose import compose
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.invocation import command_line
from minigpt.rundir.rows import TIMINGS, read_rows


def verify_command(arguments: list[str]) -> int:
    """Run `minigpt verify-resume`: exit code 0 for the same bytes, 1 for other bytes.

    Raises:
        UserFault: a fault of the command line, or of `verify_resume`.
    """
    given = [argument for argument in arguments if not argument.startswith(("kills=", "run.dir=", "logger="))]
    kills = next((argument.removeprefix("kills=") for argument in arguments if argument.startswith("kills=")), "5")
    if not (kills.isascii() and kills.isdigit() and 1 <= int(kills) <= 10_000):
        raise UserFault(f"kills={kills}: wanted a whole number of kills from 1 to 10,000, like kills=5")
    config = compose("train", given)
    folder = Path(tempfile.mkdtemp(prefix="minigpt-verify-"))
    verdict = verify_resume(config, [*command_line("train"), *given], kills=int(kills), folder=folder)
    print(f"Compared       {verdict.compared}")
    for difference in verdict.differences:
        print(f"Different      {difference}")
    if verdict.differences:
        print(f"NOT EXACT: killed {verdict.kills} times, the run ended with other bytes. Both runs are in {folder}")
        if config.trainer.device != "cpu" and not config.trainer.deterministic:
            print("On a GPU, equal bits need trainer.deterministic=true")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print(f"EXACT: killed {verdict.kills} times, the run ended with the same bytes as the one that was not.")
    return 0


@dataclass
class Verdict:
    """The result of a comparison."""

    compared: str  # in words
    differences: list[str]  # none: the same bytes
    kills: int  # those that came while the run was going on


def verify_resume(
    config: TrainConfig,
    command: Sequence[str],
    *,
    kills: int,
    seed: int = 0,
    folder: Path,
    say: Callable[[str], object] = print,
) -> Verdict:
    """Run a training twice, once in one go, once killed with SIGKILL at random moments, and compare.

    Args:
        config: the settings of the training.
        command: starts the training when `run.dir=...` is added.
        kills: how many.
        seed: decides the moments of the kills.
        folder: where the two runs go.
        say: takes a line for each run and each kill.

    Raises:
        UserFault: the settings promise no equal bytes, or the training itself fails.
    """
    if config.trainer.max_minutes is not None:
        raise UserFault(
            "trainer.max_minutes ends a run by the clock, so two runs end at different steps. "
            "Verify with trainer.max_steps=60 trainer.max_minutes=null"
        )
    straight, killed = folder / "straight", folder / "killed"
    begun = time.perf_counter()
    _finish(command, straight)
    seconds = time.perf_counter() - begun
    last = last_checkpoint(straight)
    say(f"Straight run   {last.name} after {seconds:.1f} s")
    training = max(float(read_rows(straight / "metrics.jsonl")[-1]["seconds"]), 0.1)
    moments = random.Random(seed)
    struck = 0
    for number in range(1, kills + 1):
        saved = list_checkpoints(killed / "checkpoints")
        left = 1 - (step_of(saved[-1]) / step_of(last) if saved else 0)
        while_starting = number > 1 and moments.random() < 0.15
        longest = seconds - training if while_starting else 2 * training * left / (kills - number + 2)
        if not _kill_after(command, killed, moments.random() * longest, while_starting=while_starting):
            break  # the run had ended before
        struck += 1
        rows = read_rows(killed / "metrics.jsonl")
        saved = list_checkpoints(killed / "checkpoints")
        say(
            f"Kill {number:>3}       after the row of step {rows[-1]['step'] if rows else 0}, "
            f"newest checkpoint {saved[-1].name if saved else 'none'}"
            + (" (while it started)" if while_starting else "")
        )
    _finish(command, killed)
    return Verdict(*compare_runs(straight, killed), struck)


def last_checkpoint(run: Path) -> Path:
    """The newest checkpoint folder of a run.

    Raises:
        UserFault: it has none.
    """
    checkpoints = list_checkpoints(run / "checkpoints")
    if not checkpoints:
        raise UserFault(f"{run} has no checkpoint to compare")
    return checkpoints[-1]


def compare_runs(one: Path, other: Path) -> tuple[str, list[str]]:
    """Compare the last checkpoint file by file, every row of metrics.jsonl but its timings, and the samples.

    Returns:
        What was compared, in words, and a line for each difference.
    """
    first, second = last_checkpoint(one), last_checkpoint(other)
    differences = [] if first.name == second.name else [f"the last checkpoint: {first.name} and {second.name}"]
    names = sorted({path.name for folder in (first, second) for path in folder.iterdir()})
    differences += [f"{name}: other bytes" for name in names if _digest(first / name) != _digest(second / name)]
    rows, other_rows = (_rows(run / "metrics.jsonl") for run in (one, other))
    if len(rows) != len(other_rows):
        differences.append(f"metrics.jsonl: {len(rows)} and {len(other_rows)} rows")
    for row, other_row in zip(rows, other_rows, strict=False):
        if row != other_row:
            keys = [key for key in row.keys() | other_row.keys() if row.get(key) != other_row.get(key)]
            differences.append(f"metrics.jsonl, step {row.get('step')}: {', '.join(sorted(keys)) or 'order of keys'}")
            break
    if _digest(one / "samples.jsonl") != _digest(other / "samples.jsonl"):
        differences.append("samples.jsonl: other texts")
    return f"{len(names)} files of {first.name}, {len(rows)} rows of metrics.jsonl, samples.jsonl", differences


def _rows(path: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in read_rows(path)]


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _start(command: Sequence[str], run: Path, output: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, f"run.dir={run}"], stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _finish(command: Sequence[str], run: Path) -> None:
    """Run the training to its end."""
    process = _start(command, run, subprocess.PIPE)
    try:
        output, _ = process.communicate()
    except BaseException:
        _kill(process)
        raise
    if process.returncode != 0:
        raise UserFault(f"the training ended with exit code {process.returncode}. Its last lines:\n{output[-3000:]}")


def _kill_after(command: Sequence[str], run: Path, seconds: float, *, while_starting: bool) -> bool:
    """Start the training and kill it so many seconds later, counted from its start or from its first step.

    Returns:
        Whether it was still running when it was killed.
    """
    starts = _starts(run)
    process = _start(command, run, subprocess.DEVNULL)
    try:
        while not while_starting and process.poll() is None and _starts(run) == starts:
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    finally:
        _kill(process)
    return process.returncode == -signal.SIGKILL


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a training with all processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _starts(run: Path) -> int:
    return sum(row.get("event") in ("began", "continued") for row in read_rows(run / "events.jsonl"))
