"""What a sweep leaves for people and programs: leaderboard.csv, summary.json, best/, sweep.sbatch."""

import csv
import io
import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.config.compose import compose, to_yaml
from minigpt.config.convert import as_typed
from minigpt.invocation import command_line, typed
from minigpt.redact import redact, redact_arguments
from minigpt.report.record import read_text
from minigpt.rundir.files import write_file
from minigpt.sweep.settings import Sweep, overrides
from minigpt.sweep.trial_store import COMPLETE, Trial, ranked, standard_error, state_of

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
exec {command}  # in this shell's place, which is what SLURM sends its signals to
"""


def write_results(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Write everything but the page.

    Raises:
        OSError: the sweep's directory can't be written.
    """
    found = entries(sweep, trials)
    write_file(sweep.folder / "leaderboard.csv", leaderboard(sweep, found))
    best = found[0] if found and found[0]["rank"] else None
    summary = {
        "name": sweep.name,
        "metric": sweep.config.sweep.metric,
        "seeds": sweep.config.seeds,
        "trials_wanted": sweep.trials,
        "states": dict(Counter(map(state_of, trials))),
        "tokens": sum(trial.user_attrs.get("tokens", 0) for trial in trials),
        "seconds": round(sum(trial.user_attrs.get("seconds", 0.0) for trial in trials), 3),
        "best": best,
        "trials": sorted(found, key=lambda each: each["number"]),
    }
    write_file(sweep.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    if best is not None:
        write_best(sweep, best)


def entries(sweep: Sweep, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as the files show them, the best first."""
    found = []
    for rank, trial in enumerate(ranked(trials), start=1):
        values = trial.user_attrs.get("values", [])
        shown = trial.user_attrs.get("same_as", trial.number), values.index(min(values)) if values else 0
        found.append(
            {
                "rank": rank if trial.state == COMPLETE else None,
                "number": trial.number,
                "state": state_of(trial),
                "value": trial.value,
                "standard_error": standard_error(trial),
                "params": trial.params,
                "run.dir": str(sweep.run_dir(*shown)),  # of its best seed; of its twin, where it was not run itself
                **dict(sorted(trial.user_attrs.items())),
            }
        )
    return found


def leaderboard(sweep: Sweep, found: Sequence[Mapping[str, Any]]) -> str:
    """Return the entries as CSV."""
    text = io.StringIO()
    error = ["standard_error"] if sweep.config.seeds > 1 else []
    heads = ["rank", "value", *error, "state", *sweep.space, "run.dir"]
    writer = csv.DictWriter(text, heads, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**each, **{key: as_typed(value) for key, value in each["params"].items()}} for each in found)
    return text.getvalue()


def write_best(sweep: Sweep, best: Mapping[str, Any]) -> None:
    """Write the best trial's whole config as an experiment, and the commands that train it again."""
    folder, rerun, values = sweep.folder / "best", rerun_command(sweep), overrides(best["params"])
    commands = f"{rerun}\n{typed('train')} {redact(shlex.join([*sweep.shared, *values]))}\n"
    if read_text(folder / "command.txt") == commands:
        return  # written last, so the rest is there
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    head = f"Trial {best['number']} of {sweep.name}: {sweep.config.sweep.metric} {best['value']:.6g}"
    text = redact(to_yaml(compose("train", [*sweep.shared, *values])))
    write_file(folder / "experiment" / "best.yaml", f"# @package _global_\n# {head}\n# {rerun}\n{text}")
    write_file(folder / "command.txt", commands)


def rerun_command(sweep: Sweep) -> str:
    """Return the command that trains the best settings again."""
    return f"{typed('train')} --config-dir {shlex.quote(str(sweep.folder / 'best'))} experiment=best"


def write_slurm_script(sweep: Sweep) -> None:
    """Write sweep.sbatch into the sweep's directory, to be looked through (partition, time) and submitted."""
    file, config = sweep.folder / "sweep.sbatch", sweep.config
    devices = config.workers * config.trainer.devices
    text = SLURM_SCRIPT.format(
        workers=config.workers,
        file=shlex.quote(str(file)),
        name=sweep.name.replace(" ", "-"),
        last=min(sweep.trials, 4) - 1,
        cpus=4 * devices,
        gpus="" if config.trainer.device in ("cpu", "mps") else f"#SBATCH --gpus={devices}\n",
        folder=sweep.folder,
        here=shlex.quote(os.getcwd()),
        command=shlex.join([*command_line("sweep"), *redact_arguments(sweep.arguments)]),
    )
    write_file(file, text)
