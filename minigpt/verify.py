"""`minigpt verify-resume`: a run killed at random moments must end with the bytes of one that was not."""

import contextlib
import filecmp
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from minigpt.checkpoint.store import list_checkpoints, step_of
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.invocation import command_line
from minigpt.rundir.rows import TIMINGS, read_rows


def verify(config: TrainConfig, arguments: Sequence[str], *, kills: int) -> int:
    """Run `minigpt verify-resume` and print the verdict.

    Args:
        config: of the training.
        arguments: of `minigpt train`, which describe it.
        kills: how often the run is killed.

    Returns:
        The exit code: 0 for the same bytes, 1 for other bytes.

    Raises:
        UserFault: see `verify_resume`.
    """
    given = [argument for argument in arguments if not argument.startswith(("run.dir=", "logger="))]
    folder = Path(tempfile.mkdtemp(prefix="minigpt-verify-"))
    done, (compared, differences) = verify_resume(config, [*command_line("train"), *given], kills=kills, folder=folder)
    print(f"Compared       {compared}")
    for difference in differences:
        print(f"Different      {difference}")
    if differences:
        print(f"NOT EXACT: killed {done} times, the run ended with other bytes. Both runs are in {folder}")
        if config.trainer.device != "cpu" and not config.trainer.deterministic:
            print("On a GPU, equal bits need trainer.deterministic=true")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print(f"EXACT: killed {done} times, the run ended with the same bytes as the one that was not.")
    return 0


def verify_resume(
    config: TrainConfig,
    command: Sequence[str],
    *,
    kills: int,
    seed: int = 0,
    folder: Path,
    say: Callable[[str], object] = print,
) -> tuple[int, tuple[str, list[str]]]:
    """Run a training twice, once in one go, once killed with SIGKILL at random moments, and compare.

    Args:
        config: the settings of the training.
        command: starts the training when `run.dir=...` is added.
        kills: how many.
        seed: decides the moments of the kills.
        folder: where the two runs go.
        say: takes a line for each run and each kill.

    Returns:
        How many kills came while the run was going on, and what `compare_runs` returns.

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
    _train(command, straight)
    seconds = time.perf_counter() - begun
    last = last_checkpoint(straight)
    say(f"Straight run   {last.name} after {seconds:.1f} s")
    training = max(float(read_rows(straight / "metrics.jsonl")[-1]["seconds"]), 0.1)
    moments = random.Random(seed)
    done = 0
    for number in range(1, kills + 1):
        saved = list_checkpoints(killed / "checkpoints")
        left = 1 - (step_of(saved[-1]) / step_of(last) if saved else 0)
        while_starting = number > 1 and moments.random() < 0.15
        longest = seconds - training if while_starting else 2 * training * left / (kills - number + 2)
        if not _train(command, killed, kill_after=moments.random() * longest, while_starting=while_starting):
            break  # the run had ended before
        done = number
        rows = read_rows(killed / "metrics.jsonl")
        saved = list_checkpoints(killed / "checkpoints")
        say(
            f"Kill {number:>3}       after the row of step {rows[-1]['step'] if rows else 0}, "
            f"newest checkpoint {saved[-1].name if saved else 'none'}"
            + (" (while it started)" if while_starting else "")
        )
    _train(command, killed)
    return done, compare_runs(straight, killed)


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
    _, mismatched, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    differences += [f"{name}: other bytes" for name in sorted(mismatched + missing)]
    rows, other_rows = (_rows(run / "metrics.jsonl") for run in (one, other))
    if len(rows) != len(other_rows):
        differences.append(f"metrics.jsonl: {len(rows)} and {len(other_rows)} rows")
    for row, other_row in zip(rows, other_rows, strict=False):
        if row != other_row:
            keys = [key for key in row.keys() | other_row.keys() if row.get(key) != other_row.get(key)]
            differences.append(f"metrics.jsonl, step {row.get('step')}: {', '.join(sorted(keys)) or 'order of keys'}")
            break
    samples = [
        (run / "samples.jsonl").read_bytes() if (run / "samples.jsonl").exists() else b"" for run in (one, other)
    ]
    if samples[0] != samples[1]:
        differences.append("samples.jsonl: other texts")
    return f"{len(names)} files of {first.name}, {len(rows)} rows of metrics.jsonl, samples.jsonl", differences


def _rows(path: Path) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in read_rows(path)]


def _train(command: Sequence[str], run: Path, *, kill_after: float | None = None, while_starting: bool = False) -> bool:
    """Run the training to its end, or kill it so many seconds after its first step, or after its start.

    Returns:
        Whether it was killed.

    Raises:
        UserFault: it ended by itself with another exit code than 0.
    """
    begun = _beginnings(run)
    with open(run.with_suffix(".txt"), "w+b") as output:
        process = subprocess.Popen([*command, f"run.dir={run}"], stdout=output, stderr=output, start_new_session=True)
        try:
            while (
                kill_after is not None and not while_starting and process.poll() is None and _beginnings(run) == begun
            ):
                time.sleep(0.01)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(kill_after)
        finally:
            if process.poll() is None:  # else the number may be another process' by now
                os.killpg(process.pid, signal.SIGKILL)
        if process.wait() not in (0, -signal.SIGKILL) or (kill_after is None and process.returncode):
            output.seek(0)
            last = output.read()[-3000:].decode(errors="replace")
            raise UserFault(f"the training ended with exit code {process.returncode}. Its last lines:\n{last}")
    return process.returncode != 0


def _beginnings(run: Path) -> int:
    return sum(row.get("event") in ("began", "continued") for row in read_rows(run / "events.jsonl"))
