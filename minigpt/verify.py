"""`minigpt verify-resume`: a run killed at random moments must end with the same bytes as one that was not killed."""

import filecmp
import itertools
import math
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.checkpoint.folder import list_checkpoints
from minigpt.children import Child
from minigpt.config.schema import TrainConfig
from minigpt.faults import StoppedEarly, UserFault
from minigpt.ranks.signals import Signals
from minigpt.rundir.rows import TIMINGS, read_rows
from minigpt.screen import number_of


def verify_resume(config: TrainConfig, command: Sequence[str], *, kills: int, folder: Path, seed: int = 0) -> int:
    """Run a training twice, once in one go and once killed with SIGKILL at random moments, and compare.

    Args:
        command: starts the training when `run.dir=...` is added.
        folder: where the two runs go; removed if they are equal.
        seed: decides the moments of the kills.

    Returns:
        The exit code: 0 for the same bytes, 1 for other bytes.
    """
    if config.trainer.max_minutes is not None:
        remedy = "Verify with trainer.max_steps=60 trainer.max_minutes=null"
        raise UserFault(f"trainer.max_minutes ends a run by the clock, and two runs at different steps. {remedy}")
    if "checkpoint.every_steps" not in config.typed and (steps := config.trainer.max_steps):
        command = [*command, f"checkpoint.every_steps={max(1, min(steps // 10, config.checkpoint.every_steps))}"]
    straight, killed, moments, done, proved = folder / "straight", folder / "killed", random.Random(seed), 0, False
    try:
        with Signals():  # so that a signal kills the training that is running
            _train(command, straight)
            print(f"Straight run   {last_checkpoint(straight).name}", flush=True)
            seconds = float(read_rows(straight / "metrics.jsonl")[-1]["seconds"])
            while done < kills and _train(command, killed, kill_after=moments.uniform(0, 2 * seconds / (kills + 1))):
                newest = max((path.name for path in list_checkpoints(killed / "checkpoints")), default="none")
                done, proved = done + 1, proved or newest != "none"
                print(f"Kill {done:>3}       newest checkpoint {newest}", flush=True)
            if not proved:
                wrong = "the training was never killed after its first checkpoint: nothing is proved"
                remedy = "Train longer or save more often: trainer.max_steps=N checkpoint.every_steps=N"
                raise UserFault(f"{wrong}. {remedy}")
            _train(command, killed)
    except StoppedEarly:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    compared, differences = compare_runs(straight, killed)
    print("\n".join([f"Compared       {compared}", *(f"Different      {line}" for line in differences)]))
    if not differences:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"EXACT: killed {number_of(done, 'time')}, the run ended with the same bytes as the one that was not.")
        return 0
    print(f"NOT EXACT: killed {number_of(done, 'time')}, the run ended with other bytes. Both runs are in {folder}")
    if config.trainer.device != "cpu" and not config.trainer.deterministic:
        print("On a GPU, equal bits need trainer.deterministic=true")
    return 1


def last_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint folder of a run."""
    return list_checkpoints(run / "checkpoints")[-1]


def compare_runs(first_run: Path, second_run: Path) -> tuple[str, list[str]]:
    """Compare the last checkpoints, all rows of metrics.jsonl except their timings, and the samples.

    Returns what was compared, and a line for each difference.
    """
    first, second = last_checkpoint(first_run), last_checkpoint(second_run)
    differences = [] if first.name == second.name else [f"the last checkpoint: {first.name} and {second.name}"]
    names = sorted({path.name for folder in (first, second) for path in folder.iterdir()})
    _, mismatched, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    differences += [f"{name}: other bytes" for name in sorted(mismatched + missing)]
    rows, other_rows = (read_rows(run / "metrics.jsonl") for run in (first_run, second_run))
    for row, other_row in itertools.zip_longest(rows, other_rows, fillvalue=dict[str, Any]()):
        if keys := {key for key in row.keys() | other_row.keys() if row.get(key) != other_row.get(key)} - set(TIMINGS):
            where = f"metrics.jsonl ({len(rows)} and {len(other_rows)} rows), step {(row or other_row).get('step')}"
            differences.append(f"{where}: {', '.join(sorted(keys))}")
            break
    if read_rows(first_run / "samples.jsonl") != read_rows(second_run / "samples.jsonl"):
        differences.append("samples.jsonl: other texts")
    return f"{len(names)} files of {first.name}, {len(rows)} rows of metrics.jsonl, samples.jsonl", differences


def _train(command: Sequence[str], run: Path, *, kill_after: float = math.inf) -> bool:
    """Run the training to its end, or kill it `kill_after` seconds after it began; return whether it was killed."""

    def beginnings() -> int:
        return sum(row.get("event") in ("began", "continued") for row in read_rows(run / "events.jsonl"))

    begun = beginnings()
    training = Child([*command, f"run.dir={run}"], run.with_suffix(".txt"))
    try:
        while kill_after < math.inf and training.poll() is None and beginnings() == begun:
            time.sleep(0.01)
        training.wait(kill_after)
    finally:
        training.kill()
    code = training.wait()
    if code not in (0, -signal.SIGKILL) or (code and kill_after == math.inf):
        last = "\n".join(training.last_lines())
        raise UserFault(f"the training ended with exit code {code}. Its last lines:\n{last}")
    return code != 0
