"""What a sweep leaves for people and programs: leaderboard.csv, summary.json and best/; each file is replaced whole."""

import csv
import io
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.config.compose import compose, to_yaml
from minigpt.faults import StorageFailure
from minigpt.redact import redact, redact_values
from minigpt.report.record import read_text
from minigpt.rundir.files import write_file
from minigpt.sweep.settings import Plan
from minigpt.sweep.space import text_of
from minigpt.sweep.trial import COMPLETE, Trial, best_trial, ranked, standard_error


def write_results(plan: Plan, trials: Sequence[Trial]) -> None:
    """Write everything but the page.

    Raises:
        StorageFailure: the sweep's directory can't be written.
    """
    try:
        write_file(plan.folder / "leaderboard.csv", leaderboard(plan, trials))
        write_file(plan.folder / "summary.json", json.dumps(summary(plan, trials), indent=1) + "\n")
        write_best(plan, trials)
    except OSError as error:
        raise cannot_write(plan.folder, error) from error


def cannot_write(folder: Path, error: OSError) -> StorageFailure:
    """The sentence for a sweep's directory that takes nothing."""
    return StorageFailure(
        f"sweep.dir={folder} can't be written: {error.strerror or error}. Free some space (or mend the folder), then "
        "run the same command again: it goes on where it stands"
    )


def run_of(plan: Plan, trial: Trial) -> Path:
    """The run directory that shows a trial: of its best seed; where it was not run itself, of its twin."""
    values = trial.facts.get("values", [])
    place = values.index(min(values)) if values else 0
    return plan.run_dir(trial.facts.get("same_as", trial.number), place)


def leaderboard(plan: Plan, trials: Sequence[Trial]) -> str:
    """One line a trial, the best first."""
    keys = [axis.key for axis in plan.axes]
    several = ["standard_error"] if plan.config.seeds > 1 else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "value", *several, "state", *keys, "run.dir"])
    for rank, trial in enumerate(ranked(list(trials)), start=1):
        error = standard_error(trial.facts.get("values", []))
        writer.writerow(
            [
                rank if trial.state == COMPLETE else "",
                "" if trial.value is None else repr(trial.value),
                *(["" if error is None else repr(error)] if several else []),
                trial.state,
                *(text_of(trial.params[key]) for key in keys),
                run_of(plan, trial),
            ]
        )
    return text.getvalue()


def summary(plan: Plan, trials: Sequence[Trial]) -> dict[str, Any]:
    """The sweep as JSON."""
    best = best_trial(list(trials))
    return {
        "name": plan.name,
        "metric": plan.config.sweep.metric,
        "seeds": plan.config.seeds,
        "trials_wanted": plan.trials,
        "states": dict(Counter(trial.state for trial in trials)),
        "tokens": sum(trial.facts.get("tokens", 0) for trial in trials),
        "seconds": round(sum(trial.facts.get("seconds", 0.0) for trial in trials), 3),
        "best": None if best is None else entry(plan, best),
        "trials": [entry(plan, trial) for trial in trials],
    }


def entry(plan: Plan, trial: Trial) -> dict[str, Any]:
    """A trial as JSON."""
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "standard_error": standard_error(trial.facts.get("values", [])),
        "params": trial.params,
        "run.dir": str(run_of(plan, trial)),
        **dict(sorted(trial.facts.items())),
    }


def write_best(plan: Plan, trials: Sequence[Trial]) -> None:
    """The best trial's whole config, as an experiment that reruns as is."""
    best = best_trial(list(trials))
    if best is None:
        return
    folder = plan.folder / "best"
    facts = json.dumps(redact_values(entry(plan, best)), indent=1) + "\n"
    if read_text(folder / "trial.json") == facts:
        return  # written last, so the rest is there
    overrides = [argument for argument in plan.overrides(best, 0) if not argument.startswith("seed=")]
    if "seed" in best.params:
        overrides.append(f"seed={best.params['seed']}")
    config = compose("train", [*plan.arguments, *overrides])
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    text = redact(to_yaml(config))
    rerun = f"python scripts/train.py --config-dir {shlex.quote(str(folder))} experiment=best"
    values = ", ".join(f"{key}={text_of(value)}" for key, value in best.params.items())
    head = f"Trial {best.number} of {plan.name}: {plan.config.sweep.metric} {best.value:.6g} with {values}"
    write_file(folder / "experiment" / "best.yaml", f"# @package _global_\n# {head}\n# {rerun}\n{text}")
    write_file(folder / "command.txt", f"{rerun}\n{typed(plan, overrides)}\n")
    write_file(folder / "trial.json", facts)


def typed(plan: Plan, overrides: Sequence[str]) -> str:
    """The same training as one command of single settings."""
    return redact(shlex.join(["python", "scripts/train.py", *plan.arguments, *overrides]))
