"""What a sweep leaves for people and programs: leaderboard.csv, summary.json, best/, sweep.sbatch."""

import csv
import io
import json
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.config.compose import compose, to_yaml
from minigpt.config.convert import as_typed
from minigpt.faults import StorageFailure
from minigpt.invocation import command_line, typed
from minigpt.redact import redact, redact_arguments, redact_values
from minigpt.report.record import read_text
from minigpt.rundir.files import write_file
from minigpt.sweep.settings import Sweep, overrides
from minigpt.sweep.trial_store import COMPLETE, Trial, best_trial, ranked, standard_error, state_of

SLURM_SCRIPT = """\
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


def write_results(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Write everything but the page.

    Raises:
        StorageFailure: the sweep's directory can't be written.
    """
    try:
        write_file(sweep.folder / "leaderboard.csv", leaderboard(sweep, trials))
        write_file(sweep.folder / "summary.json", json.dumps(summary(sweep, trials), indent=1) + "\n")
        write_best(sweep, trials)
    except OSError as error:
        raise cannot_write(sweep.folder, error) from error


def cannot_write(folder: Path, error: OSError) -> StorageFailure:
    """Return the fault of a sweep's directory that can't be written."""
    return StorageFailure(
        f"sweep.dir={folder} can't be written: {error.strerror or error}. Free some space, or correct the folder's "
        "permissions, then run the same command again: it goes on where it stopped"
    )


def run_of(sweep: Sweep, trial: Trial) -> Path:
    """Return the run directory that shows a trial: of its best seed; of its twin, where it was not run itself."""
    values = trial.user_attrs.get("values", [])
    place = values.index(min(values)) if values else 0
    return sweep.run_dir(trial.user_attrs.get("same_as", trial.number), place)


def leaderboard(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """Return the trials as CSV, the best first."""
    text = io.StringIO()
    error = ["standard_error"] if sweep.config.seeds > 1 else []
    heads = ["rank", "value", *error, "state", *sweep.space, "run.dir"]
    writer = csv.DictWriter(text, heads, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for rank, trial in enumerate(ranked(trials), start=1):
        params = {key: as_typed(value) for key, value in trial.params.items()}
        writer.writerow(entry(sweep, trial) | params | {"rank": rank if trial.state == COMPLETE else ""})
    return text.getvalue()


def summary(sweep: Sweep, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the sweep as JSON."""
    best = best_trial(trials)
    return {
        "name": sweep.name,
        "metric": sweep.config.sweep.metric,
        "seeds": sweep.config.seeds,
        "trials_wanted": sweep.trials,
        "states": dict(Counter(state_of(trial) for trial in trials)),
        "tokens": sum(trial.user_attrs.get("tokens", 0) for trial in trials),
        "seconds": round(sum(trial.user_attrs.get("seconds", 0.0) for trial in trials), 3),
        "best": None if best is None else entry(sweep, best),
        "trials": [entry(sweep, trial) for trial in trials],
    }


def entry(sweep: Sweep, trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON."""
    return {
        "number": trial.number,
        "state": state_of(trial),
        "value": trial.value,
        "standard_error": standard_error(trial),
        "params": trial.params,
        "run.dir": str(run_of(sweep, trial)),
        **dict(sorted(trial.user_attrs.items())),
    }


def write_best(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Write the best trial's whole config as an experiment, and the commands that train it again."""
    best = best_trial(trials)
    if best is None:
        return
    folder = sweep.folder / "best"
    facts = json.dumps(redact_values(entry(sweep, best)), indent=1) + "\n"
    if read_text(folder / "trial.json") == facts:
        return  # written last, so the rest is there
    arguments = [*sweep.shared, *overrides(best.params)]
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    text = redact(to_yaml(compose("train", arguments)))
    rerun = rerun_command(sweep)
    values = ", ".join(overrides(best.params))
    head = f"Trial {best.number} of {sweep.name}: {sweep.config.sweep.metric} {best.value:.6g} with {values}"
    write_file(folder / "experiment" / "best.yaml", f"# @package _global_\n# {head}\n# {rerun}\n{text}")
    write_file(folder / "command.txt", f"{rerun}\n{typed('train')} {redact(shlex.join(arguments))}\n")
    write_file(folder / "trial.json", facts)


def rerun_command(sweep: Sweep) -> str:
    """Return the command that trains the best settings again."""
    return f"{typed('train')} --config-dir {shlex.quote(str(sweep.folder / 'best'))} experiment=best"


def write_slurm_script(sweep: Sweep) -> Path:
    """Write sweep.sbatch into the sweep's directory, to be looked through (partition, time) and submitted."""
    file = sweep.folder / "sweep.sbatch"
    devices = sweep.config.workers * sweep.config.trainer.devices
    on_cpu = sweep.config.trainer.device in ("cpu", "mps")
    text = SLURM_SCRIPT.format(
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
