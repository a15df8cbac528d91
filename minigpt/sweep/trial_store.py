"""The trials of a sweep, kept by Optuna: in a journal file, which survives any kill, or in a database.

A trial's `user_attrs` hold further facts: cause, tail, values (one for each seed), tokens, seconds, tokens_per_second,
same_as. Its `intermediate_values` are tokens -> best value so far, at the marks where trials are compared.
"""

import contextlib
import math
import os
import shutil
import statistics
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial as Trial
from optuna.trial import TrialState, create_trial

from minigpt.faults import UserFault
from minigpt.redact import redact
from minigpt.rundir.rows import parse_row
from minigpt.sweep.locks import exclusive

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = dict[str, Distribution]  # searched setting -> its values
Point = dict[str, Any]  # searched setting -> value

COMPLETE, PRUNED, FAILED = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
optuna.logging.set_verbosity(optuna.logging.WARNING)  # the sweep prints lines of its own about each trial
ORDER = (COMPLETE, PRUNED, TrialState.RUNNING, TrialState.WAITING, FAILED)


class JournalLock:
    """A lock for Optuna's writes to the journal that the kernel drops when its holder is killed.

    Acquiring it repairs the journal: after half a line the next line would be unreadable, too.
    """

    def __init__(self, journal: Path):
        self.journal = journal
        self.held = contextlib.ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock."""
        self.held.enter_context(exclusive(self.journal.with_suffix(".lock")))
        cut_torn_line(self.journal)
        return True

    def release(self) -> None:
        """Let others write."""
        self.held.close()


def cut_torn_line(journal: Path) -> None:
    """Cut off a journal's last line if a kill or a full disk left it torn, and keep a copy of the file beside it."""
    with open(journal, "ab+") as file:
        file.seek(max(0, file.tell() - 1))
        if file.read() in (b"\n", b""):
            return
        shutil.copyfile(journal, journal.with_suffix(".torn"))
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        os.fsync(file.fileno())


class TrialStore:
    """The trials of one sweep, shared by all its workers.

    Args:
        folder: the sweep's directory.
        name: of the study in the storage.
        space: the searched settings and their values.
        url: of a database; None for the journal in the folder.

    Raises:
        UserFault: the database can't be opened, or the journal can't be read.
        OSError: the journal can't be written.
    """

    def __init__(self, folder: Path, name: str, space: Space, url: str | None = None):
        self.space = space
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self.storage: BaseStorage = self._open_journal(folder / "journal.jsonl") if url is None else open_database(url)
        self.study = optuna.create_study(storage=self.storage, study_name=name, load_if_exists=True)
        self.study_id = self.storage.get_study_id_from_name(name)

    def _open_journal(self, journal: Path) -> JournalStorage:
        journal_lock = JournalLock(journal)
        try:
            journal_lock.acquire()
            journal_lock.release()
            return JournalStorage(JournalFileBackend(str(journal), lock_obj=journal_lock))  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            lines = enumerate(journal.read_bytes().split(b"\n"), start=1)
            place = next((f" in line {number:,}" for number, line in lines if line and parse_row(line) is None), "")
            remedy = "Put the file back as it was, cut it there (later trials run again), or give a sweep.dir=NEW_DIR"
            raise UserFault(f"{journal} is damaged{place}. {remedy}") from error

    def trials(self) -> list[Trial]:
        """Return all trials, by number."""
        return sorted(self.study.get_trials(deepcopy=False), key=lambda trial: trial.number)

    def begin(self, point: Point) -> Trial:
        """Add a trial, in one write."""
        template = create_trial(state=TrialState.RUNNING, params=point, distributions=dict(self.space))
        template.datetime_start = datetime.now()
        return self.storage.get_trial(self.storage.create_new_trial(self.study_id, template_trial=template))

    def report(self, trial: Trial, tokens: int, value: float) -> Trial:
        """Store the value that a trial had at a mark; return the trial as it is now."""
        self.storage.set_trial_intermediate_value(self._id(trial), tokens, value)
        return self.storage.get_trial(self._id(trial))

    def note(self, trial: Trial, state: TrialState | None = None, value: float | None = None, **facts: Any) -> Trial:
        """Store facts about a trial, then its result if there is one, which is final; return the trial as it is now."""
        for name, fact in facts.items():
            self.storage.set_trial_user_attr(self._id(trial), name, fact)
        if state is not None:
            self.storage.set_trial_state_values(self._id(trial), state, None if value is None else [value])
        return self.storage.get_trial(self._id(trial))

    def _id(self, trial: Trial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)


def open_database(url: str) -> RDBStorage:
    """Open Optuna's storage in a database.

    Raises:
        UserFault: it can't be opened.
    """
    try:
        return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None)
    except Exception as error:  # of SQLAlchemy, or of a database's driver
        why = redact(" ".join(str(error).split())[:300])
        remedy = "Correct it (PostgreSQL needs pip install psycopg2-binary), or leave it out for a journal file"
        raise UserFault(f"sweep.storage={redact(url)} can't be opened: {why}. {remedy}") from error


def state_of(trial: Trial) -> str:
    """Return the state in a word: complete, pruned, running or failed."""
    return "failed" if trial.state == FAILED else trial.state.name.lower()


def is_finished(trial: Trial) -> bool:
    """Return whether a trial has its final result."""
    return trial.state.is_finished()


def standard_error(trial: Trial) -> float | None:
    """Return the standard error of the mean over the trial's seeds; None for fewer than two."""
    values = trial.user_attrs.get("values", [])
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Sort trials: complete ones by value, then pruned ones, running ones and failed ones."""
    return sorted(trials, key=lambda trial: (ORDER.index(trial.state), trial.value or 0.0, trial.number))


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the complete trial with the lowest value (of equal ones the first), or None if no trial is complete."""
    first = next(iter(ranked(trials)), None)
    return first if first is not None and first.state == COMPLETE else None
