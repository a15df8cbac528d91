"""How a run ends: its report, the last lines on the screen and the exit code."""

import shlex
import time
from collections.abc import Callable

from minigpt.config.schema import CONVERSATIONS
from minigpt.data.measures.baselines import baselines
from minigpt.data.measures.overlap import overlap_warning
from minigpt.faults import FINISHED, STOPPED, NonFiniteTraining, StoppedEarly
from minigpt.invocation import typed
from minigpt.ranks.slurm import requeue
from minigpt.report.page import write_report
from minigpt.report.record import advice, beside_forecast, number, read_record, source_losses, verdict
from minigpt.rundir.rows import read_rows
from minigpt.rundir.run_directory import RunDirectory
from minigpt.screen import tell
from minigpt.training.state import RunState, TrainingJob, reached_limit
from minigpt.training.token_losses import keep_token_losses


def finish(job: TrainingJob, state: RunState, reason: str | None, *, ask_queue: bool) -> int:
    """Print how the run ended and what to type next; return the exit code.

    `reason` is signal, max_minutes, patience or callback; None if all steps are made. `ask_queue`: whether the signal
    asked for the job to be queued again.
    """
    run, limit = job.run, reached_limit(state, job.config)
    reason = reason or (None if limit else "callback")  # a callback can end a training before its first step
    if not run.writes:
        return STOPPED if reason == "signal" else FINISHED
    run.event("stopped" if reason == "signal" else "finished", step=state.step, reason=reason or limit)
    if reason != "signal":
        attempt("The baselines", lambda: keep_baselines(job))
        attempt("The losses of single tokens", lambda: keep_token_losses(job))
    attempt("The pictures of the report", lambda: write_report(run.path))
    if reason == "signal":
        tell(f"\nStopped after step {state.step:,}. Checkpoint in {run.path}; the same command continues the run.")
        requeue(tell, asked=ask_queue)
        return STOPPED
    refuse_nothing_learned(job, state)
    if reason:
        cause = "a callback" if reason == "callback" else f"trainer.{reason}"
        tell(f"\nEnded after step {state.step:,} by {cause}.")
    continued = any(event.get("event") == "continued" for event in read_rows(run.events))
    print_results(run, seconds=None if continued else time.monotonic() - job.config.since)
    if warning := overlap_warning(job.prepared.summary):
        tell(f"Note: {warning}")
    return FINISHED


def attempt(results: str, work: Callable[[], object]) -> None:
    """Do what must not spoil a finished training if it fails."""
    try:
        work()
    except (Exception, StoppedEarly) as error:
        tell(f"{results} were left out: {type(error).__name__}: {error}")


def keep_baselines(job: TrainingJob) -> None:
    """Measure the baselines of this text once, for the report and the last lines; a signal ends this at once."""
    signals = job.processes.signals
    try:
        signals.raise_if_received()
        rows = baselines(job.prepared)
        kept = {"fingerprint": job.prepared.fingerprint, "baselines": rows}
        job.run.write_json("baseline.json", kept | {"overlap": job.prepared.summary.get("overlap", {}).get("share")})
    finally:
        signals.noted_only = True


def refuse_nothing_learned(job: TrainingJob, state: RunState) -> None:
    """Refuse to call a run finished if the guard has skipped every one of its steps."""
    if state.step and state.bad_steps == state.step:
        wrong = f"every one of the {state.step:,} steps was skipped: nothing was learned"
        raise NonFiniteTraining(f"{wrong}. Look at the data, or use {steadier(job)}")


def steadier(job: TrainingJob) -> str:
    """Return the settings with which a run that became non-finite may not."""
    lower = f"a lower optimizer.lr (now {job.config.optimizer.lr:g})"
    has_fp32 = (job.run.read_json("choices.json") or {}).get("precision") == "fp32"
    return lower if has_fp32 else f"{lower} or trainer.precision=fp32"


def print_results(run: RunDirectory, seconds: float | None = None) -> None:
    """Print the validation loss and a judgement of it, the paths of the files, and the command that samples.

    `seconds`: the time of the whole command, if it is known.
    """
    rows = read_rows(run.metrics)
    validations = [row for row in rows if number(row.get("val/perplexity")) is not None]
    if not validations:
        tell(f"Run directory  {run.path} (its metrics.jsonl holds no validation)")
        return
    last, best = validations[-1], min(validations, key=lambda row: row["val/loss"])
    for name, row in [("final and best", last)] if best is last else [("final", last), ("best", best)]:
        others = f"perplexity {row['val/perplexity']:.2f}  {row['val/bits_per_byte']:.4f} bits per byte"
        tell(f"Validation ({name}, step {row['step']:,})  {row['val/loss']:.4f} nats per token  {others}")
        for source, loss in source_losses(row).items():
            tell(f"  {source}  {loss:.4f} nats per token")
    record = read_record(run.path)
    tell(f"Verdict        {verdict(record)}\n               {advice(record)}".rstrip())
    for row in record.baselines:
        of = f" (of {row['of']})" if row.get("of") else ""
        tell(f"Baseline       {row['bits_per_byte']:.4f} bits per byte  {row.get('name', '')!s:.60}{of}")
    for line in beside_forecast(record, seconds):
        tell(line)
    tell(f"Run directory  {run.path}")
    tell(f"Picture        {run.path / 'loss.png'}   report  {run.path / 'report.html'}")
    if record.config.get("data.name") in CONVERSATIONS:
        tell(f"Talk to it:  {typed('chat')} checkpoint={shlex.quote(str(run.path))}")
    else:
        tell(f'Sample from it:  {typed("sample")} checkpoint={shlex.quote(str(run.path))} prompt="..."')


def tell_finished(run: RunDirectory, state: RunState, limit: str) -> None:
    """Print that the run was finished before, its results, and how to start another."""
    if run.writes:
        tell(f"This run is finished: {state.step:,} steps, and trainer.{limit} allows no more.")
        print_results(run)
        tell("Another run    the same command with run.dir=NEW_DIR or another seed")
        tell(f"A longer run   the same command with run.dir={run.path} and a larger trainer.{limit}")
