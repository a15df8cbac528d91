"""The run directory: its lock and its small files."""

import contextlib
import errno
import fcntl
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from minigpt import __version__
from minigpt.config.convert import flatten, settings, to_dict
from minigpt.config.schema import TrainConfig
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import flush, lock, read_json, write_file, write_json
from minigpt.invocation import PACKAGE, typed_words
from minigpt.redact import redact_arguments, redact_values
from minigpt.rundir.rows import append_row

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


class RunDirectory:
    """A run's folder, made if missing, and the files in it.

    Used as `with RunDirectory(...) as run:`; a lock keeps other processes out until the block, or the process, ends.
    `writes`: this process writes (rank 0).
    """

    def __init__(self, path: Path, *, writes: bool):
        self.path = path
        self.writes = writes
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.samples = path / "samples.jsonl"
        self._lock_file: IO[str] | None = None

    def __enter__(self) -> "RunDirectory":
        if self.writes:
            try:
                self._make()
            except OSError as error:
                raise self._unwritable(error) from error
        return self

    def _make(self) -> None:
        if self.checkpoints.is_symlink():
            raise UserFault(f"{self.checkpoints} is a link, perhaps into another run. Remove it")
        new = [folder for folder in (self.checkpoints, *self.checkpoints.parents) if not folder.exists()]
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for folder in new:
            flush(folder.parent)  # else a power cut may take the folder, and all that is durable in it
        self._lock_file = open(self.path / "run.lock", "a+")  # noqa: SIM115 - stays open
        try:
            lock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.seek(0)
            owner = self._lock_file.read().strip() or "another process"
            remedy = "Wait for it, stop it, or choose another run.dir"
            raise UserFault(f"run.dir={self.path} is in use by {owner}. {remedy}") from None
        self._lock_file.truncate(0)
        self._lock_file.write(f"process {os.getpid()} on {platform.node()}")
        self._lock_file.flush()

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._lock_file is not None:
            if isinstance(error, UserFault) and not (self.path / "config.yaml").exists():
                with contextlib.suppress(OSError):  # nothing is left of a run that never began
                    (self.path / "run.lock").unlink()
                    self.checkpoints.rmdir()
                    self.path.rmdir()
            self._lock_file.close()
        is_of_run = isinstance(error, OSError) and str(error.filename or "").startswith(str(self.path))
        if isinstance(error, OSError) and (is_of_run or error.errno in DISK_ERRORS):
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StorageFailure:
        wrong = f"run.dir={self.path} can't be written: {error.strerror or error}. Its checkpoints are untouched"
        return StorageFailure(f"{wrong}. Free some space or choose another run.dir; then run the same command again")

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file of the run, or None if there is no such file."""
        return read_json(self.path / name) if (self.path / name).exists() else None

    def saved_config(self) -> dict[str, Any] | None:
        """Return the config with which the run was begun, flat, by the names that users type; None for a new run."""
        file = self.path / "config.yaml"
        try:
            return flatten(yaml.safe_load(file.read_text()), settings(TrainConfig)) if file.exists() else None
        except (ValueError, AttributeError, yaml.YAMLError):
            raise UserFault(f"{file} is not what a run writes. Put it back as it was") from None

    def skipped_batches(self) -> list[list[int]]:
        """Return the (first, last) batches that the guard found bad; no step trains on them."""
        return self.read_json("skipped_batches.json") or []

    def write_json(self, name: str, content: Any) -> None:
        """Write a small file whole, or leave it as it was (rank 0 only)."""
        if self.writes:
            write_json(self.path / name, content)

    def event(self, kind: str, **facts: Any) -> None:
        """Write a start, restart, stop, skip or warning to events.jsonl (rank 0 only)."""
        if self.writes:
            row = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": kind, **facts}
            with contextlib.suppress(OSError):  # an event that can't be written must not end the run
                append_row(self.events, row)

    def record(self, config: TrainConfig, choices: Mapping[str, Any]) -> None:
        """Write config.yaml, command.txt, environment.json and choices.json, without secrets (rank 0 only)."""
        if self.writes:
            plain = redact_values(to_dict(config))
            write_file(self.path / "config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
            write_file(self.path / "command.txt", shlex.join(redact_arguments(typed_words())) + "\n")
            write_json(self.path / "environment.json", environment())
            write_json(self.path / "choices.json", choices)


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
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(gpus)],
    }


def commit() -> str | None:
    """Return the commit of minigpt's own source; None without a checkout or without git."""
    if not (PACKAGE.parent / ".git").exists() or shutil.which("git") is None:
        return None
    answer = subprocess.run(["git", "-C", str(PACKAGE), "rev-parse", "HEAD"], capture_output=True, text=True)
    return answer.stdout.strip() or None
