"""How a run ends: what is said, drawn and typed next, and its exit code."""

import shlex

from minigpt.faults import FINISHED, STOPPED, NonFiniteTraining
from minigpt.invocation import typed
from minigpt.process.group import mark_stopped
from minigpt.report.page import write_report
from minigpt.rundir.rows import read_rows
from minigpt.rundir.run_directory import RunDirectory
from minigpt.training.state import RunState, reached_limit
from minigpt.training.step import LanguageModel
from minigpt.training.stopping import requeue_slurm_job


def close(run: RunDirectory, module: LanguageModel) -> int:
    """Say how the run ended and what to type next."""
    state, reason = module.state, module.step_end.stop_reason
    limit = reached_limit(state, module.config)
    if not run.writes:
        return STOPPED if reason == "signal" else FINISHED
    run.event("stopped" if reason == "signal" else "finished", step=state.step, reason=reason or limit)
    report(run)
    if reason == "signal":
        print(f"\nStopped after step {state.step:,}. Checkpoint in {run.path}; the same command continues the run.")
        mark_stopped(run.path)
        if module.step_end.requeue:
            requeue_slurm_job(print)
        return STOPPED
    if state.bad_steps == state.step:
        raise NonFiniteTraining(
            f"every one of the {state.step:,} steps was skipped: nothing was learned. Look at the data, or use a "
            f"lower optimizer.lr (now {module.config.optimizer.lr:g}) or trainer.precision=fp32"
        )
    if reason:
        why = {
            "patience": f"no validation improved for {module.config.trainer.patience} validations",
            "callback": "a callback ended the training; the same command goes on from here",
        }.get(reason, "the time is up")
        print(f"\nEnded after step {state.step:,}: {why}.")
    print_results(run)
    return FINISHED


def report(run: RunDirectory) -> None:
    """Draw the run; trouble with it never spoils the training."""
    try:
        write_report(run.path)
    except Exception as error:
        print(f"The report could not be drawn: {type(error).__name__}: {error}")


def print_results(run: RunDirectory) -> None:
    """Validation loss, where everything is, and the command that samples."""
    validations = [row for row in read_rows(run.metrics) if row.get("val/loss") is not None]
    if not validations:
        print(f"Run directory  {run.path} (its metrics.jsonl holds no validation)")
        return
    last, best = validations[-1], min(validations, key=lambda row: row["val/loss"])
    for name, row in [("final and best", last)] if best is last else [("final", last), ("best", best)]:
        print(
            f"Validation ({name}, step {row['step']:,})  {row['val/loss']:.4f} nats per token  "
            f"perplexity {row['val/perplexity']:.2f}  {row['val/bits_per_byte']:.4f} bits per byte"
        )
    print(f"Run directory  {run.path}")
    print(f"Picture        {run.path / 'loss.png'}   report  {run.path / 'report.html'}")
    print(f'Sample from it:  {typed("sample")} checkpoint={shlex.quote(str(run.path))} prompt="..."')


def tell_finished(run: RunDirectory, state: RunState, limit: str) -> None:
    """The run is done: show it again, and how to start another."""
    if not run.writes:
        return
    print(f"This run is finished: {state.step:,} steps, its trainer.{limit}.")
    print_results(run)
    print("Another run    the same command with run.dir=NEW_DIR or another seed")
    print(f"A longer run   the same command with run.dir={run.path} and a larger trainer.{limit}")
