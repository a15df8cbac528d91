"""How a run ends: requests to stop, which take effect when an optimizer step ends, and the last lines on the screen."""

import contextlib
import json
import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.config.schema import TrainConfig
from minigpt.data.measures.baselines import baselines
from minigpt.data.prepared import CONVERSATIONS, Prepared
from minigpt.faults import FINISHED, STOPPED, NonFiniteTraining, StoppedEarly
from minigpt.invocation import typed
from minigpt.ranks.group import mark_stopped
from minigpt.ranks.signals import Signals
from minigpt.ranks.slurm import requeue
from minigpt.report.page import write_report
from minigpt.report.record import number, read_baselines
from minigpt.rundir.rows import read_rows
from minigpt.rundir.run_directory import RunDirectory
from minigpt.training.run_state import RunState, reached_limit

if TYPE_CHECKING:
    from minigpt.training.step import LanguageModel


@dataclass(frozen=True)
class StopRequest:
    """What a process asks for, or all of them together."""

    stop: bool = False  # after this step, with a checkpoint; the same command continues the run
    requeue: bool = False  # and SLURM is asked to run the job again
    out_of_time: bool = False  # max_minutes is over: the run is finished
    by_callback: bool = False  # a user's callback has set trainer.should_stop


class StopRequests:
    """What may ask this process to stop: signals, a file and the time limit.

    Args:
        signals: that this process has received.
        stop_file: a file that asks as a signal does; removed when the run stops for it. None: there is no such file.
        max_minutes: of training, or None.
    """

    def __init__(self, signals: Signals, stop_file: Path | None, max_minutes: float | None):
        self.signals = signals
        self.stop_file = stop_file
        self.max_minutes = max_minutes

    def now(self, seconds: float) -> StopRequest:
        """Return what this process asks for after so many seconds of training."""
        received = self.signals.received
        asked = self.stop_file is not None and os.path.exists(self.stop_file)
        return StopRequest(
            stop=asked or received is not None,
            requeue=received is not None and received == getattr(signal, "SIGUSR1", None),
            out_of_time=self.max_minutes is not None and seconds >= 60 * self.max_minutes,
        )

    def obeyed(self) -> None:
        """Remove the file that asked, if one did: the run stops for it."""
        if self.stop_file is not None:
            with contextlib.suppress(OSError):
                self.stop_file.unlink()


def close(run: RunDirectory, module: "LanguageModel", prepared: Prepared, signals: Signals) -> int:
    """Print how the run ended and what to type next; return the exit code."""
    state = module.state
    limit = reached_limit(state, module.config)
    # No reason and no limit: a callback asked for the end before Lightning came to the first step.
    reason = module.step_end.stop_reason or (None if limit else "callback")
    if not run.writes:
        return STOPPED if reason == "signal" else FINISHED
    run.event("stopped" if reason == "signal" else "finished", step=state.step, reason=reason or limit)
    if reason != "signal":
        keep_baselines(run, prepared, signals)
    try:
        write_report(run.path)
    except Exception as error:  # a failed report must not spoil a finished training
        print(f"The report could not be drawn: {type(error).__name__}: {error}")
    if reason == "signal":
        print(f"\nStopped after step {state.step:,}. Checkpoint in {run.path}; the same command continues the run.")
        mark_stopped(run.path)
        requeue(print, asked=module.step_end.requeue)
        return STOPPED
    refuse_nothing_learned(state, module.config)
    if reason:
        why = {
            "patience": f"no validation improved for {module.config.trainer.patience} validations",
            "callback": "a callback ended the training; the same command goes on from here",
        }.get(reason, "the time is up")
        print(f"\nEnded after step {state.step:,}: {why}.")
    print_results(run)
    return FINISHED


def keep_baselines(run: RunDirectory, prepared: Prepared, signals: Signals) -> None:
    """Measure the baselines of this text, unless that was done, for the report and the last lines."""
    try:
        signals.raise_if_received()
        rows = baselines(prepared, say=print)
        run.write_text("baseline.json", json.dumps({"fingerprint": prepared.fingerprint, "baselines": rows}) + "\n")
    except StoppedEarly:
        print("The baselines were left out.")
    except Exception as error:  # nor must failed baselines
        print(f"The baselines could not be measured: {type(error).__name__}: {error}")
    finally:
        signals.noted_only = True


def refuse_nothing_learned(state: RunState, config: TrainConfig) -> None:
    """Refuse to call a run finished if it made no update.

    Raises:
        NonFiniteTraining: the guard has skipped every one of its steps.
    """
    if state.step and state.bad_steps == state.step:
        raise NonFiniteTraining(
            f"every one of the {state.step:,} steps was skipped: nothing was learned. Look at the data, or use a "
            f"lower optimizer.lr (now {config.optimizer.lr:g}) or trainer.precision=fp32"
        )


def print_results(run: RunDirectory) -> None:
    """Print the validation loss, where the files are, and the command that samples."""
    shown = ("step", "val/loss", "val/perplexity", "val/bits_per_byte")
    validations = [row for row in read_rows(run.metrics) if all(number(row.get(key)) is not None for key in shown)]
    if not validations:
        print(f"Run directory  {run.path} (its metrics.jsonl holds no validation)")
        return
    last, best = validations[-1], min(validations, key=lambda row: row["val/loss"])
    for name, row in [("final and best", last)] if best is last else [("final", last), ("best", best)]:
        print(
            f"Validation ({name}, step {row['step']:,})  {row['val/loss']:.4f} nats per token  "
            f"perplexity {row['val/perplexity']:.2f}  {row['val/bits_per_byte']:.4f} bits per byte"
        )
        for key in (key for key in row if key.startswith("val/loss/")):
            print(f"  {key.removeprefix('val/loss/')}  {row[key]:.4f} nats per token")
    for row in read_baselines(run.path):
        of = f" (of {row['of']})" if row.get("of") else ""
        print(f"Baseline       {row['bits_per_byte']:.4f} bits per byte  {row.get('name', '')!s:.60}{of}")
    print(f"Run directory  {run.path}")
    print(f"Picture        {run.path / 'loss.png'}   report  {run.path / 'report.html'}")
    if (run.saved_config() or {}).get("data.name") in CONVERSATIONS:
        print(f"Talk to it:  {typed('chat')} checkpoint={shlex.quote(str(run.path))}")
    else:
        print(f'Sample from it:  {typed("sample")} checkpoint={shlex.quote(str(run.path))} prompt="..."')


def tell_finished(run: RunDirectory, state: RunState, limit: str) -> None:
    """Say that the run was finished before, print its results again and how to start another."""
    if not run.writes:
        return
    print(f"This run is finished: {state.step:,} steps, its trainer.{limit}.")
    print_results(run)
    print("Another run    the same command with run.dir=NEW_DIR or another seed")
    print(f"A longer run   the same command with run.dir={run.path} and a larger trainer.{limit}")
