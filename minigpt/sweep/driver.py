"""The sweep itself: one loop that gives trials to slots, watches them, and writes down what comes out."""

import os
import platform
import signal
import time
from pathlib import Path

import yaml

from minigpt.config.convert import shown
from minigpt.config.plain_yaml import plain_yaml
from minigpt.data.prepare import prepare, require_vocabulary
from minigpt.faults import FINISHED, STOPPED, TRIALS_FAILED, UserFault
from minigpt.process.signals import Signals
from minigpt.redact import redact_values
from minigpt.rundir.files import write_file
from minigpt.sweep.locks import STALE_SECONDS, Claim, alone, claim, owner
from minigpt.sweep.page import write_page
from minigpt.sweep.propose import propose
from minigpt.sweep.results import cannot_write, write_results
from minigpt.sweep.settings import Plan
from minigpt.sweep.slots import note_on_slots, share_out
from minigpt.sweep.slurm import write_slurm_script
from minigpt.sweep.table import Table, news_of
from minigpt.sweep.trial import FAILED, RUNNING, Trial, best_trial
from minigpt.sweep.trial_runner import Attempt
from minigpt.sweep.trial_store import Ledger

POLL_SECONDS = 0.1
IDENTITY = "sweep.yaml"


def run_sweep(plan: Plan) -> int:
    """Run a sweep to its end, beginning or continuing or joining it.

    Returns:
        0 when all trials have a result, 6 when some failed or too many failed in a row, 75 when a signal stopped it.

    Raises:
        UserFault: the directory belongs to another sweep, or the data is at fault.
        StorageFailure: the directory can't be written.
    """
    with Signals() as signals:
        prepare_data(plan)
        try:
            open_folder(plan)
            write_slurm_script(plan)
            with alone(plan.folder / "sweep.lock"):  # a database's tables are made once
                ledger = Ledger(plan.folder, plan.name, plan.axes, plan.config.sweep.storage)
        except OSError as error:
            raise cannot_write(plan.folder, error) from error
        signals.noted_only = True
        return Driver(plan, ledger, signals).run()


def prepare_data(plan: Plan) -> None:
    """Make the tokens once, before trials would wait for each other; and name what is wrong with the text."""
    searched = {axis.key.partition(".")[0] for axis in plan.axes}
    if not searched & {"data", "tokenizer", "experiment"}:
        require_vocabulary(plan.base.data, plan.base.tokenizer)
        prepare(plan.base.data, plan.base.tokenizer)


def open_folder(plan: Plan) -> None:
    """Make the sweep's directory, or see that it is this sweep's.

    Raises:
        UserFault: it was begun with other settings.
    """
    (plan.folder / "trials").mkdir(parents=True, exist_ok=True)
    with alone(plan.folder / "sweep.lock"):
        file = plan.folder / IDENTITY
        mine = redact_values(plan.identity())
        if not file.exists():
            write_file(file, yaml.safe_dump(mine, sort_keys=False, allow_unicode=True))
            return
        try:
            theirs = plain_yaml(file.read_text(encoding="utf-8"))
            assert isinstance(theirs, dict)
        except (ValueError, AssertionError, yaml.YAMLError) as error:
            raise UserFault(
                f"{file} is not what a sweep writes there. Start another sweep with sweep.dir=NEW_DIR"
            ) from error
    changed = [key for key in sorted(theirs.keys() | mine.keys()) if theirs.get(key) != mine.get(key)]
    if changed:
        raise UserFault(
            f"sweep.dir={plan.folder} was begun with other settings, and its trials could not be compared:\n"
            + "\n".join(f"  {key}: {shown(theirs.get(key))} -> {shown(mine.get(key))}" for key in changed)
            + "\nTake these values back, or start another sweep with sweep.dir=NEW_DIR"
        )


class Driver:
    """Gives trials to this machine's slots until there are no more.

    Args:
        plan: of the sweep.
        ledger: its trials.
        signals: noted; obeyed between two looks.
    """

    def __init__(self, plan: Plan, ledger: Ledger, signals: Signals):
        self.plan = plan
        self.ledger = ledger
        self.signals = signals
        self.slots = share_out(plan.config.workers, plan.base)
        self.attempts: dict[int, Attempt] = {}  # slot -> what runs there
        self.table = Table(plan)
        self.failures = 0  # in a row, since this driver began
        self.ended = False  # no new trials
        self.too_many = ""
        self.waiting_since: float | None = None  # for trials that others may have or not

    def run(self) -> int:
        """Until all trials have a result, or no more may be begun."""
        self.greet()
        try:
            while True:
                self.obey()
                busy = self.fill_slots()
                for number in list(self.attempts):
                    self.look_at(number)
                if self.table.is_due():
                    self.table.show(self.ledger.trials(), list(self.attempts.values()))
                if not self.attempts and (self.ended or not busy):
                    break
                time.sleep(POLL_SECONDS)
        except OSError as error:
            raise cannot_write(self.plan.folder, error) from error
        return self.close()

    def greet(self) -> None:
        """Say what is going to happen."""
        plan, trials = self.plan, self.ledger.trials()
        done = self.table.done_before = sum(trial.finished for trial in trials)
        going_on = f", {done} done" if trials else ""
        self.table.say(
            f"Sweep      {plan.folder}: {plan.trials} trials of {', '.join(axis.key for axis in plan.axes)}{going_on}"
        )
        threads, gpus = self.slots[0].threads, sorted({gpu for slot in self.slots for gpu in slot.gpus})
        on = f"GPU {', '.join(gpus)}" if gpus else f"CPU, {threads} thread(s) each"
        self.table.say(f"Workers    {len(self.slots)} on {platform.node()}: {on}")
        if self.ledger.mended:
            self.table.say("The journal's last line was torn and is cut; a copy is in journal.torn")
        note = note_on_slots(self.slots, plan.base.trainer.devices)
        if note:
            self.table.say(f"Note: {note}")
        if plan.config.trials and plan.trials < plan.config.trials:
            self.table.say(f"Note: the grid has {plan.trials} points, so there are no more trials than that")

    def obey(self) -> None:
        """A signal stops all trials at the end of their step."""
        if self.signals.received is not None and not self.ended:
            self.ended = True
        if self.ended:
            for attempt in self.attempts.values():
                if self.signals.received is not None and not attempt.stopping:
                    attempt.stop()

    def fill_slots(self) -> bool:
        """Give work to idle slots.

        Returns:
            Whether there is, or may yet be, something to do.
        """
        busy = bool(self.attempts)
        for slot in self.slots:
            if slot.number in self.attempts or self.ended:
                continue
            taken = self.take()
            if taken is None:
                return busy or self.may_be_left()
            self.waiting_since = None
            trial, right = taken
            attempt = self.attempts[slot.number] = Attempt(self.plan, self.ledger, trial, claim=right, slot=slot)
            attempt.begin(self.ledger.trials())
            self.settle(slot.number)
            busy = True
        return busy

    def take(self) -> tuple[Trial, Claim] | None:
        """A trial that nobody runs: begun by somebody who is gone, or new."""
        plan = self.plan
        with alone(plan.folder / "sweep.lock"):
            trials = self.ledger.trials()
            here = {attempt.trial.number for attempt in self.attempts.values()}
            for trial in trials:
                if trial.state == RUNNING and trial.number not in here:
                    right = claim(self.lock_of(trial))
                    if right is None and self.is_dying(trial):
                        return None  # to begin another one now would make the order of trials a matter of luck
                    if right is None:
                        continue
                    now = self.ledger.trials()[trial.number]  # it may have ended between the look and the claim
                    if not now.finished:
                        return now, right
                    right.release()
            if len(trials) >= plan.trials:
                return None
            point = propose(
                plan.axes, plan.config.search, seed=plan.config.sweep.seed, number=len(trials), trials=trials
            )
            trial = self.ledger.begin(point)
            right = claim(self.lock_of(trial))
            assert right is not None, "a new trial is nobody's"
            return trial, right

    def lock_of(self, trial: Trial) -> Path:
        """Whoever holds it runs the trial."""
        return self.plan.folder / "locks" / trial.label

    def is_dying(self, trial: Trial) -> bool:
        """Whether a trial is held by the training of a driver that was killed, which is on its way out."""
        machine, process = owner(self.lock_of(trial))
        return machine == platform.node() and not is_alive(process)

    def may_be_left(self) -> bool:
        """Whether a trial of somebody else could yet fall to us: its driver is gone, or not known to be alive."""
        running = [trial for trial in self.ledger.trials() if trial.state == RUNNING]
        for trial in running:
            machine, _ = owner(self.lock_of(trial))
            if self.is_dying(trial):
                return True
            if machine not in ("", platform.node()):
                if self.waiting_since is None:
                    self.waiting_since = time.monotonic()
                return time.monotonic() < self.waiting_since + STALE_SECONDS + 10
        return False

    def look_at(self, number: int) -> None:
        """Advance what runs in a slot."""
        self.attempts[number].advance(self.ledger.trials)
        self.settle(number)

    def settle(self, number: int) -> None:
        """Free the slot of a trial that is over, and tell what came out."""
        attempt = self.attempts[number]
        if not attempt.over:
            return
        del self.attempts[number]
        trial = attempt.trial
        if not trial.finished:
            return
        self.table.say(news_of(trial, self.plan))
        if trial.state == FAILED:
            for line in trial.facts.get("tail", [])[-5:]:
                self.table.say(f"    | {line}")
        self.write()
        if "same_as" not in trial.facts:
            self.failures = self.failures + 1 if trial.state == FAILED else 0
        most = self.plan.config.sweep.max_failures
        if most and self.failures >= most and not self.ended:
            self.ended = True
            self.too_many = (
                f"{self.failures} trials in a row failed, so no more are begun (sweep.max_failures={most}). The last: "
                f"{trial.facts.get('cause')}. All of its output: {attempt.output}. Mend the cause, then the same "
                "command goes on with the next trials"
            )

    def write(self) -> None:
        """Bring all files up to date. One worker at a time, so that the newest state is what stays."""
        with alone(self.plan.folder / "results.lock"):
            trials = self.ledger.trials()
            write_results(self.plan, trials)
            try:
                write_page(self.plan, trials)
            except Exception as error:  # a picture must not end a night's work
                self.table.say(f"sweep.html could not be drawn: {type(error).__name__}: {error}")

    def close(self) -> int:
        """Say how it ended."""
        trials = self.ledger.trials()
        self.write()
        self.table.close(trials)
        best = best_trial(trials)
        folder = self.plan.folder
        if best is not None:
            print(f"Best       trial {best.number}; train it again: cat {folder / 'best' / 'command.txt'}")
        print(f"Results    {folder / 'sweep.html'}   {folder / 'leaderboard.csv'}   {folder / 'summary.json'}")
        if self.signals.received is not None:
            print("Stopped, each trial with a checkpoint. The same command continues the sweep.")
            if self.signals.received == getattr(signal, "SIGUSR1", None):
                from minigpt.training.stopping import requeue_slurm_job

                requeue_slurm_job(print)
            return STOPPED
        elsewhere = sum(trial.state == RUNNING for trial in trials)
        if elsewhere:
            print(f"{elsewhere} trial(s) still run under other workers; the last one to end writes the last table.")
        if self.too_many:
            print(f"Stopped early: {self.too_many}")
        return TRIALS_FAILED if any(trial.state == FAILED for trial in trials) else FINISHED


def is_alive(process: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
