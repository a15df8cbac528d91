"""What became of each trial, kept by Optuna: in a journal file, which survives any kill, or in a database."""

import contextlib
import fcntl
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from minigpt.faults import StorageFailure, UserFault
from minigpt.redact import redact
from minigpt.sweep.propose import STATES, frozen
from minigpt.sweep.space import Axis, Point
from minigpt.sweep.trial import COMPLETE, FAILED, PRUNED, RUNNING, Trial

NAMES = {state: name for name, state in STATES.items()} | {optuna.trial.TrialState.WAITING: RUNNING}


class JournalLock:
    """Optuna's lock around each write, here one that the kernel drops when its holder is killed.

    Whoever gets it mends the journal first: half a line would make the next one unreadable, too.
    """

    def __init__(self, journal: Path):
        self.journal = journal
        self.file: Any = None

    def acquire(self) -> bool:
        """Wait for it."""
        self.file = open(self.journal.with_suffix(".lock"), "a")  # noqa: SIM115 - held until release
        fcntl.flock(self.file, fcntl.LOCK_EX)
        mend(self.journal)
        return True

    def release(self) -> None:
        """Let others write."""
        self.file.close()


def mend(journal: Path) -> int:
    """Cut what a kill or a full disk left of a journal's last line, keeping a copy beside it.

    Returns:
        How many bytes went.
    """
    try:
        with open(journal, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return 0
            file.seek(max(0, size - 1))
            if file.read() == b"\n":
                return 0
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            shutil.copyfile(journal, journal.with_suffix(".torn"))
            file.truncate(whole)
            os.fsync(file.fileno())
            return size - whole
    except FileNotFoundError:
        return 0


class Ledger:
    """The trials of one sweep, as all its workers see them.

    Args:
        folder: the sweep's directory.
        name: of the study in the storage.
        axes: what is searched.
        url: of a database; None for the journal in the folder.

    Raises:
        UserFault: the database can't be opened, or the journal can't be read.
    """

    def __init__(self, folder: Path, name: str, axes: Sequence[Axis], url: str | None = None):
        self.axes = axes
        self.journal = folder / "journal.jsonl"
        self.mended = 0
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self.storage: BaseStorage = self._journal() if url is None else open_database(url)
        try:
            self.study_id = self.storage.get_study_id_from_name(name)
        except KeyError:
            study = optuna.create_study(storage=self.storage, study_name=name, load_if_exists=True)
            self.study_id = self.storage.get_study_id_from_name(study.study_name)

    def _journal(self) -> JournalStorage:
        lock = JournalLock(self.journal)
        try:
            lock.acquire()
            lock.release()
            torn = self.journal.with_suffix(".torn")
            self.mended = torn.stat().st_size if torn.exists() else 0
            return JournalStorage(JournalFileBackend(str(self.journal), lock_obj=lock))  # type: ignore[arg-type]
        except OSError as error:
            raise StorageFailure(
                f"{self.journal} can't be written: {error.strerror or error}. Make room, mend the folder's "
                "permissions, or choose another sweep.dir"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            place = first_bad_line(self.journal)
            raise UserFault(
                f"{self.journal} is damaged{place}, and what follows can't be trusted. Put the file back as it was, "
                "cut it there (trials after it run again), or start another sweep with sweep.dir=NEW_DIR"
            ) from error

    def trials(self) -> list[Trial]:
        """All trials, by number."""
        found = self.storage.get_all_trials(self.study_id, deepcopy=False)
        return [
            Trial(
                each.number,
                dict(each.params),
                NAMES[each.state],
                each.value if NAMES[each.state] in (COMPLETE, PRUNED) else None,
                dict(each.intermediate_values),
                dict(each.user_attrs),
            )
            for each in sorted(found, key=lambda each: each.number)
        ]

    def begin(self, point: Point) -> Trial:
        """Add a trial, in one write."""
        template = frozen(self.axes, Trial(-1, point))
        template.datetime_start = datetime.now()
        trial_id = self.storage.create_new_trial(self.study_id, template_trial=template)
        return Trial(self.storage.get_trial_number_from_id(trial_id), dict(point))

    def report(self, trial: Trial, tokens: int, value: float) -> None:
        """Note what a trial had at a mark."""
        trial.curve[tokens] = value
        self.storage.set_trial_intermediate_value(self._id(trial), tokens, value)

    def note(self, trial: Trial, **facts: Any) -> None:
        """Remember something about a trial."""
        trial.facts |= facts
        for name, fact in facts.items():
            self.storage.set_trial_user_attr(self._id(trial), name, fact)

    def finish(self, trial: Trial, state: str, value: float | None = None) -> None:
        """A trial's result; it stands from here on."""
        assert state in (COMPLETE, PRUNED, FAILED)
        trial.state, trial.value = state, value
        self.storage.set_trial_state_values(self._id(trial), STATES[state], None if value is None else [value])

    def _id(self, trial: Trial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)


def open_database(url: str) -> RDBStorage:
    """Optuna's storage in a database.

    Raises:
        UserFault: it can't be opened.
    """
    try:
        return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None)
    except ModuleNotFoundError as error:
        raise UserFault(
            f"sweep.storage={redact(url)} needs the Python package '{error.name}': python -m pip install "
            f"{'psycopg2-binary' if error.name == 'psycopg2' else error.name}"
        ) from error
    except Exception as error:  # SQLAlchemy's and each driver's own
        reason = redact(" ".join(str(error).split())[:300])
        raise UserFault(
            f"sweep.storage={redact(url)} can't be opened: {reason}. Give a URL like sqlite:///sweeps/all.db or "
            "postgresql://USER@HOST/DATABASE, or leave it out for a journal file in sweep.dir"
        ) from error


def first_bad_line(journal: Path) -> str:
    """Where a journal can't be read."""
    with contextlib.suppress(OSError), open(journal, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                json.loads(line)
            except ValueError:
                return f" in line {number:,}"
    return ""
