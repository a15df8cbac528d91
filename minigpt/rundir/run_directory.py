"""The run directory: its lock, its small files, and what may be in it."""

import contextlib
import errno
import fcntl
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from minigpt import __version__
from minigpt.config.convert import flatten, settings, to_dict
from minigpt.config.schema import TrainConfig
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import UNREADABLE, flush, is_gone, lock, patiently, read_plain, write_file
from minigpt.invocation import PACKAGE, typed_words
from minigpt.redact import redact_arguments, redact_values
from minigpt.rundir.rows import append_rows, folder_gone

# Errors of the disk, or of the network to it. (Not every system has each of them.)
_NAMES = "ENOSPC EDQUOT EFBIG EIO EREMOTEIO EROFS EACCES EISDIR ESTALE ENOTCONN ETIMEDOUT EHOSTDOWN ENODEV ENXIO"
STORAGE_ERRORS = {getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name)}

LOCK_SECONDS = 1.0  # to wait for the lock: `minigpt runs` holds it for a moment
MAX_BYTES = 1 << 20  # of a small file of the run; a larger one is none of ours


class RunDirectory:
    """A run's folder and the files in it.

    Used as `with RunDirectory(...) as run:`; a lock keeps other processes out until the block, or the process, ends.

    Args:
        path: the folder; made if missing.
        writes: whether this process writes (rank 0).

    Raises:
        StorageFailure: it can't be made or written.
        UserFault: another process uses it.
    """

    def __init__(self, path: Path, *, writes: bool):
        self.path = path
        self.writes = writes
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.samples = path / "samples.jsonl"
        self._lock_file: IO[str] | None = None
        self._made: list[Path] = []  # folders that were not there, innermost first

    def __enter__(self) -> "RunDirectory":
        if self.writes:
            try:
                if not is_gone(self.path):
                    self._refuse_links()
                self._made = [path for path in (self.checkpoints, *self.checkpoints.parents) if is_gone(path)]
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                for path in self._made:
                    flush(path.parent)  # else a power cut may take the folder, and all that is durable in it
                if not os.access(self.checkpoints, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, f"{self.checkpoints}: {os.strerror(errno.EACCES)}")
                self._lock_file = self._lock()
            except OSError as error:
                raise self._unwritable(error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        gone = self.writes and is_gone(self.path)
        if self._lock_file is not None:
            if isinstance(error, UserFault) and is_gone(self.path / "config.yaml"):
                # Nothing is left of a run that never began, but what others put there.
                with contextlib.suppress(OSError):
                    (self.path / "run.lock").unlink()
                    for path in self._made:
                        path.rmdir()
            self._lock_file.close()
        if isinstance(error, OSError) and gone:
            raise folder_gone(self.path) from error
        if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StorageFailure:
        wrong = f"run.dir={self.path} can't be written: {error.strerror or error}. Its checkpoints are untouched"
        return StorageFailure(f"{wrong}. Mend it, free some space, or choose another run.dir; then run it again")

    def _refuse_links(self) -> None:
        """Refuse links: in a foreign run they may lead from where we write or remove to files outside of it."""
        for entry in patiently(lambda: list(os.scandir(self.path))):
            if not entry.is_dir(follow_symlinks=False) and not entry.is_file(follow_symlinks=False):
                remedy = "Remove it, or choose another run.dir (which may itself be a link)"
                raise UserFault(f"{entry.path!r} is a link, or no plain file, and leads out of the run. {remedy}")

    def refuse_files_of_others(self) -> None:
        """Refuse a folder without config.yaml, which a run writes first, that holds files with a run's names.

        Raises:
            UserFault: there are such files, which a run would write over.
            StorageFailure: the folder of checkpoints can't be read.
        """
        for name in ("metrics.jsonl", "samples.jsonl", "environment.json", "choices.json", "command.txt"):
            if not is_gone(self.path / name):
                wrong = f"run.dir={self.path} holds {name}, but no config.yaml, so it is no run that could be continued"
                raise UserFault(f"{wrong}. Choose another run.dir, or put config.yaml back")
        here = not self.checkpoints.is_symlink() and not is_gone(self.checkpoints)  # a link is refused as such
        try:
            names = patiently(lambda: os.listdir(self.checkpoints)) if here else []
        except OSError as error:
            raise self._unwritable(error) from error
        if any(name.startswith("step-") for name in names):  # other names are allowed: a new disk has a lost+found
            wrong = f"run.dir={self.path} holds checkpoints, but no config.yaml, which says how they were trained"
            raise UserFault(f"{wrong}. Choose another run.dir, or put config.yaml back")

    def _lock(self) -> IO[str]:
        """Return the lock file, which names its owner; closing it frees the lock."""
        path, deadline = self.path / "run.lock", time.monotonic() + LOCK_SECONDS
        while True:
            file = open(path, "a+")  # noqa: SIM115 - stays open
            try:
                if not lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    print(f"Note: files in {self.path} have no locks: nothing keeps a second process out of this run")
            except BlockingIOError:
                with file:
                    file.seek(0)
                    owner = file.read().strip() or "another process"
                if time.monotonic() > deadline:
                    remedy = "Wait for it, stop it, or choose another run.dir"
                    raise UserFault(f"run.dir={self.path} is in use by {owner}. {remedy}") from None
                time.sleep(LOCK_SECONDS / 10)
                continue
            if not is_gone(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
            file.close()  # a command that was refused has removed the file: a lock on it keeps nobody out
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        return file

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the mapping in a JSON file of the run, or None if there is no such file.

        Raises:
            UserFault: the file holds no mapping.
        """
        return self._read(name, lambda text: _mapping(json.loads(text)))

    def saved_config(self) -> dict[str, Any] | None:
        """Return the config with which the run was begun, flat, by the names that users type; None for a new run.

        Raises:
            UserFault: config.yaml holds something else.
        """
        return self._read("config.yaml", lambda text: flatten(_mapping(yaml.safe_load(text)), settings(TrainConfig)))

    def skipped_batches(self) -> list[list[int]]:
        """Return the (first, last) batches that the guard found bad; no step trains on them.

        Raises:
            UserFault: skipped_batches.json holds something else.
        """
        for name in ("skipped_batches.json", "passed_over.json"):  # the second as versions up to 25310c3 called it
            if (windows := self._read(name, lambda text: _windows(json.loads(text)))) is not None:
                return windows
        return []

    def _read(self, name: str, parse: Callable[[str], Any]) -> Any:
        """Return the parsed content of a small file of the run, or None if there is none. The run may be foreign."""
        try:
            return parse(patiently(lambda: read_plain(self.path / name, MAX_BYTES)).decode())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            if isinstance(error, OSError) and error.errno not in UNREADABLE:
                wrong = f"{self.path / name} can't be read: {error.strerror or error}"
                remedy = "Look at the disk, the network or the permissions, then run the same command again"
                raise StorageFailure(f"{wrong}. {remedy}") from error
            what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            remedy = f"Put it back as it was, or start a run of its weights: run.dir=NEW_DIR init.from={self.path}"
            raise UserFault(f"{self.path / name} is not what a run writes there ({what}). {remedy}") from None

    def write_text(self, name: str, text: str) -> None:
        """Write a small file whole, or leave it as it was (rank 0 only)."""
        if self.writes:
            write_file(self.path / name, text)

    def event(self, kind: str, **facts: Any) -> None:
        """Write a start, restart, stop, skip or warning to events.jsonl (rank 0 only)."""
        if self.writes:
            row = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": kind, **facts}
            with contextlib.suppress(OSError):  # an event that can't be written must not end the run
                append_rows(self.events, [row])

    def record(self, config: TrainConfig, choices: Mapping[str, Any]) -> None:
        """Write config.yaml, command.txt, environment.json and choices.json, without secrets."""
        plain = redact_values(to_dict(config))
        self.write_text("config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
        self.write_text("command.txt", shlex.join(redact_arguments(typed_words())) + "\n")
        self.write_text("environment.json", json.dumps(environment(), indent=1) + "\n")
        self.write_text("choices.json", json.dumps(choices, indent=1) + "\n")


def _mapping(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError("it holds no mapping")
    return content


def _windows(content: Any) -> list[list[int]]:
    whole = isinstance(content, list) and all(
        isinstance(window, list) and [type(batch) for batch in window] == [int, int] and 0 <= window[0] <= window[1]
        for window in content
    )
    if not whole:
        raise ValueError("wanted [[first, last], ...]")
    return content


def environment() -> dict[str, Any]:
    """Return versions and machine, to repeat the run with. Environment variables are not in it."""
    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0  # asking for names would initialise CUDA
    return {
        "minigpt": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": importlib.metadata.version("lightning"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(gpus)],
    }


@functools.cache  # git is asked once per process
def commit(source: Path = PACKAGE.parent) -> str | None:
    """Return the commit of minigpt's own source, or of another folder; None without a checkout or without git."""
    if not (source / ".git").exists() or shutil.which("git") is None:
        return None
    found = subprocess.run(["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or None
