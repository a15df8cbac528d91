"""The sweep's main loop: gives trials to slots, watches them, and writes their results."""

import platform
import signal
import time
from dataclasses import dataclass

import yaml

from minigpt.config.convert import values
from minigpt.data.preparing.prepare import prepare, require_vocabulary
from minigpt.faults import FINISHED, STOPPED, TRIALS_FAILED, StorageFailure, UserFault
from minigpt.files import write_file
from minigpt.ranks.signals import Signals
from minigpt.ranks.slurm import requeue
from minigpt.redact import redact_values
from minigpt.report.record import read_mapping
from minigpt.sweep.locks import Claim, claim, exclusive, is_alive, owner
from minigpt.sweep.page import write_page
from minigpt.sweep.process import make_slots
from minigpt.sweep.results import Table, news_of, write_results, write_slurm_script
from minigpt.sweep.search import Pruning, propose
from minigpt.sweep.settings import Sweep, changed_settings
from minigpt.sweep.trial_runner import TrialRunner
from minigpt.sweep.trial_store import FAILED, Trial, TrialStore, best_trial, is_finished

POLL_SECONDS = 0.1


def run_sweep(sweep: Sweep) -> int:
    """Run a sweep to its end: begin, continue or join it.

    Returns:
        0 when all trials have a result, 6 when some failed or too many failed in a row, 75 when a signal stopped it.

    Raises:
        UserFault: the directory belongs to another sweep, or the data is at fault.
        StorageFailure: the directory can't be written.
    """
    with Signals() as signals:
        if not {key.partition(".")[0] for key in sweep.space} & {"data", "tokenizer", "experiment"}:
            require_vocabulary(sweep.config.data, sweep.config.tokenizer)
            prepare(sweep.config.data, sweep.config.tokenizer)  # once, or trials would wait for each other
        try:
            (sweep.folder / "trials").mkdir(parents=True, exist_ok=True)
            with exclusive(sweep.folder / "sweep.lock") as locked:
                check_identity(sweep)
                store = TrialStore(sweep.folder, sweep.name, sweep.space, sweep.config.sweep.storage)
            write_slurm_script(sweep)
            signals.noted_only = True
            driver = Driver(sweep, store, signals)
            driver.greet(locked)
            driver.run()
            return driver.close()
        except OSError as error:
            wrong = f"sweep.dir={sweep.folder} can't be written: {error.strerror or error}"
            raise StorageFailure(f"{wrong}. Free some space or mend it; the same command then goes on") from error


def check_identity(sweep: Sweep) -> None:
    """Write sweep.yaml, or check that the sweep in this directory is the same one.

    Raises:
        UserFault: the sweep there was begun with other settings.
    """
    file = sweep.folder / "sweep.yaml"
    if not file.exists():
        settings = redact_values(values(sweep.config))
        write_file(file, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        return
    changed = changed_settings(read_mapping(file), sweep.config)
    if changed:
        listed = "\n  ".join(map(str, changed))
        remedy = "Use the old values, or start another sweep with sweep.dir=NEW_DIR"
        raise UserFault(f"sweep.dir={sweep.folder} was begun with other settings:\n  {listed}\n{remedy}")


@dataclass(eq=False)
class Driver:
    """Gives trials to this machine's slots until there are no more."""

    sweep: Sweep
    store: TrialStore  # of its trials
    signals: Signals  # looked at between two rounds
    page_is_old: bool = False
    next_page_at: float = 0.0
    failures: int = 0  # in a row, since this driver began
    too_many: str = ""  # a sentence, once there were too many failures
    elsewhere: int = 0  # trials without a result that other workers run
    waiting: bool = False  # whether a line has said that this driver waits for those

    def __post_init__(self) -> None:
        self.slots = make_slots(self.sweep.config.workers, self.sweep.config.trainer)
        self.runners: dict[int, TrialRunner] = {}  # by the number of the slot
        self.pruning = Pruning(self.sweep.config.search, first=self.sweep.mark_tokens, last=self.sweep.total_tokens)
        self.table = Table(self.sweep)

    def run(self) -> None:
        """Run until all trials have a result, or no more may be begun."""
        busy = True
        while busy or self.runners:
            for runner in self.runners.values():
                runner.stopping = self.signals.received is not None
            busy = self.signals.received is None and not self.too_many and self.fill_slots()
            for number, runner in list(self.runners.items()):
                if next(runner.looks, "over") == "over":
                    del self.runners[number]
                    runner.claim.release()
                    self.publish(runner)
            if self.page_is_old and time.monotonic() > self.next_page_at:
                self.draw_page()
            if self.table.is_due():
                self.table.show(self.store.trials(), list(self.runners.values()))
            time.sleep(10 * POLL_SECONDS if self.elsewhere and not self.runners else POLL_SECONDS)

    def greet(self, locked: bool) -> None:
        """Print what is going to be run, and where."""
        sweep, trials = self.sweep, self.store.trials()
        done = self.table.done_before = sum(map(is_finished, trials))
        searched = f"{sweep.trials} trials of {', '.join(sweep.space)}"
        used = [gpu for slot in self.slots for gpu in slot.gpus]
        on = f"GPU {', '.join(sorted(set(used)))}" if used else f"CPU, {self.slots[0].threads} thread(s) each"
        self.table.say(f"Sweep      {sweep.folder}: {searched}{f', {done} done' if trials else ''}")
        self.table.say(f"Workers    {len(self.slots)} on {platform.node()}: {on}")
        if len(used) > len(set(used)):
            self.table.say("Note: several workers share a GPU, which needs memory for all of them at once")
        if (sweep.folder / "journal.torn").exists():
            self.table.say("Note: the journal's last line was torn and is cut; a copy is in journal.torn")
        if not locked:
            self.table.say("Note: no file locks here. Run one command at a time, and wait a minute after a kill")

    def fill_slots(self) -> bool:
        """Give trials to idle slots; return whether there is something to do, or may be later."""
        for number, slot in enumerate(self.slots):
            if number not in self.runners:
                taken = self.take_trial()
                if taken is None:
                    if self.elsewhere and not self.runners and not self.waiting:
                        self.waiting = True
                        self.table.say(f"Nothing is left to begin; waiting for {self.elsewhere} trial(s) of others")
                    return self.elsewhere > 0
                self.runners[number] = TrialRunner(self.sweep, self.store, *taken, slot, self.pruning)
        return True

    def take_trial(self) -> tuple[Trial, Claim] | None:
        """Claim a trial that nobody runs: one whose worker is gone, or a new one."""
        sweep, self.elsewhere = self.sweep, 0
        here = {runner.trial.number for runner in self.runners.values()}
        with exclusive(sweep.folder / "sweep.lock"):
            trials = self.store.trials()
            for trial in trials:
                if is_finished(trial) or trial.number in here:
                    continue
                right = claim(sweep.lock_of(trial.number))
                if right is not None:
                    now = self.store.trials()[trial.number]  # it may have ended between the look and the claim
                    if not is_finished(now):
                        return now, right
                    right.release()
                    continue
                self.elsewhere += 1  # if its worker dies, the trial is ours
                machine, process = owner(sweep.lock_of(trial.number))
                if machine == platform.node() and not is_alive(process):
                    # Its driver was killed, and its training is about to end. If another trial began now, the order of
                    # trials would depend on timing.
                    return None
            if len(trials) < sweep.trials:
                search, seed = sweep.config.search, sweep.config.sweep.seed
                trial = self.store.begin(propose(sweep.space, search, seed=seed, number=len(trials), trials=trials))
                right = claim(sweep.lock_of(trial.number))
                assert right is not None, "nobody can hold the claim on a new trial"
                return trial, right
        return None

    def publish(self, runner: TrialRunner) -> None:
        """Print a trial's result, if it has one, and bring the files up to date."""
        trial, facts = runner.trial, runner.trial.user_attrs
        if not is_finished(trial):
            return
        self.table.say(news_of(trial, self.sweep))
        for line in facts.get("tail", [])[-5:]:
            self.table.say(f"    | {line}")
        self.write_files()
        if "same_as" not in facts:
            self.failures = self.failures + 1 if trial.state == FAILED else 0
        limit = self.sweep.config.sweep.max_failures
        if limit and self.failures >= limit and not self.too_many:
            self.too_many = (
                f"{limit} trials in a row failed, so no more are begun (sweep.max_failures={limit}). The last, see "
                f"{runner.output}: {facts['cause']}. Remove the cause; the same command goes on with the next trials"
            )

    def write_files(self) -> None:
        """Bring the files of results up to date, one worker at a time, so that the newest state remains."""
        with exclusive(self.sweep.folder / "results.lock"):
            write_results(self.sweep, self.store.trials())
        self.page_is_old = True

    def draw_page(self) -> None:
        """Bring sweep.html up to date; the next time is after 20 times the seconds that this took."""
        began = time.monotonic()
        with exclusive(self.sweep.folder / "results.lock"):
            try:
                write_page(self.sweep, self.store.study)
            except Exception as error:  # a failed picture must not end the sweep
                self.table.say(f"sweep.html could not be drawn: {type(error).__name__}: {error}")
        self.page_is_old, self.next_page_at = False, time.monotonic() + 20 * (time.monotonic() - began)

    def close(self) -> int:
        """Print the final table and how the sweep ended; return the exit code."""
        self.write_files()
        self.draw_page()
        trials, folder = self.store.trials(), self.sweep.folder
        print(*self.table.lines(trials, rows=20), sep="\n")
        best = best_trial(trials)
        if best is not None:
            print(f"Best       trial {best.number}; train it again: cat {folder / 'best' / 'command.txt'}")
        print(f"Results    {folder / 'sweep.html'}   {folder / 'leaderboard.csv'}   {folder / 'summary.json'}")
        if self.signals.received is not None:
            print("Stopped, each trial with a checkpoint. The same command continues the sweep.")
            requeue(print, asked=self.signals.received == getattr(signal, "SIGUSR1", None))
            return STOPPED
        if self.too_many:
            print(f"Stopped early: {self.too_many}")
        return TRIALS_FAILED if any(trial.state == FAILED for trial in trials) else FINISHED
