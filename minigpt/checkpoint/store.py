"""Durable checkpoint directories.

A checkpoint is a folder `step-000001000/`. It is written beside its final place, every file is flushed to the
disk, `MANIFEST.json` with size and SHA-256 of each file comes last, and one rename makes it real. So a folder
without the `.tmp` mark is whole or was damaged later, and `verify` tells which. `latest` is never stored: it is
the newest folder that verifies.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from minigpt import __version__
from minigpt.checkpoint.together import ALONE, DamagedCheckpoint, Writers, reason_of
from minigpt.config.convert import shown
from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault
from minigpt.files import ABSENT, UNREADABLE, flush, open_plain, patiently

FORMAT = 1
MANIFEST = "MANIFEST.json"
MAX_MANIFEST_BYTES = 1 << 20
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"step-(\d{9,})")
_UNFINISHED = re.compile(r"\.step-\d+\.tmp-(\d+)(-old)?")

Read = TypeVar("Read")


def step_of(path: Path) -> int:
    """Return the step a checkpoint folder's name stands for, or -1 for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoint folders, oldest first, verified or not. Links don't count: their targets lie elsewhere.

    Raises:
        StorageFailure: the system refuses to list them, each time.
    """

    def folders() -> list[Path]:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]

    try:
        return sorted((path for path in patiently(folders) if step_of(path) >= 0), key=step_of)
    except OSError as error:
        if error.errno in ABSENT:
            return []
        remedy = "Look at the disk, the network or the permissions, then run the same command again"
        raise StorageFailure(f"{folder} can't be listed: {error.strerror or error}. {remedy}") from error


def require_space(folder: Path, need: int, what: str) -> None:
    """Refuse to begin if there is too little space on the disk.

    Raises:
        StorageFailure: fewer than `need` bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        raise StorageFailure(
            f"{what} needs {need / 1e6:.1f} MB in {folder}, and {free / 1e6:.1f} MB are free. Free some space, choose "
            "another run.dir, or keep fewer checkpoints (checkpoint.keep_last, checkpoint.keep_every_steps)"
        )


def write_checkpoint(
    folder: Path,
    step: int,
    files: Mapping[str, Sequence[bytes | memoryview]],
    facts: Mapping[str, Any],
    *,
    after: Sequence[Path] = (),
    writers: Writers = ALONE,
) -> Path:
    """Write `folder/step-<step>/` durably: whole, or not at all; then read it back.

    Args:
        folder: the run's checkpoints/ folder, which must be there.
        step: optimizer steps done.
        files: contents by file name, in parts.
        facts: further entries of the manifest (must not hold times or paths: equal runs give equal bytes).
        after: files that must be on the disk before the checkpoint is.
        writers: the processes that write it together, each its own `files`; all call this.

    Returns:
        The checkpoint's folder.

    Raises:
        StorageFailure: the disk is full or not writable, or gives back other bytes than it was given. Earlier
            checkpoints are untouched. It is raised in all writers.
    """
    final = folder / f"step-{step:09d}"
    temporary = folder / f".{final.name}.tmp-{os.getpid()}"
    need = sum(memoryview(part).nbytes for parts in files.values() for part in parts) + 65536

    def begin() -> str:
        free = shutil.disk_usage(folder).free
        if free < need:
            raise OSError(errno.ENOSPC, f"needs {need / 1e6:.1f} MB, {free / 1e6:.1f} MB are free")
        if writers.rank == 0:
            for path in after:
                flush(path)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        return temporary.name

    def finish() -> None:
        manifest = {"format": FORMAT, "step": step, **facts, "files": {name: of[name] for of in entries for name in of}}
        _write_flushed(temporary / MANIFEST, [_sealed(manifest)])
        flush(temporary)
        if final.exists():  # the same step from before a return to an older checkpoint
            _remove(final)
        os.rename(temporary, final)
        flush(folder)
        verify(final)

    try:
        temporary = folder / writers.each(begin)[0]
        entries = writers.each(lambda: {name: _write_flushed(temporary / name, parts) for name, parts in files.items()})
        writers.first(finish)
    except (OSError, DamagedCheckpoint, StorageFailure) as error:
        if writers.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        reason = reason_of(error)
        if isinstance(error, DamagedCheckpoint):
            aside = final.name
            with contextlib.suppress(OSError):  # else the next start finds it damaged
                aside = set_aside(final).name
            reason = f"what was read back is not what was written ({error}; it is kept as {aside})"
        raise StorageFailure(
            f"the checkpoint of step {step} could not be written to {folder}: {reason}. Earlier checkpoints are "
            "untouched. Free some space (or mend the folder), then run the same command again"
        ) from error
    return final


def _write_flushed(path: Path, parts: Sequence[bytes | memoryview]) -> dict[str, Any]:
    """Write a file to the disk itself and forget it in memory, so that reading it back asks the disk.

    Returns:
        Its entry in the manifest.
    """
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # it is only a hint to the system
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def read_patiently(path: Path, read: Callable[[BufferedReader], Read]) -> Read:
    """Return what `read` makes of a checkpoint's file. No link is opened: it would lead out of the checkpoint.

    Raises:
        DamagedCheckpoint: the file is missing, or is no plain file.
        StorageFailure: the system refuses to read it, each time (ESTALE, EIO, EMFILE, EACCES ...).
    """

    def attempt() -> Read:
        with open_plain(path, links=False) as file:
            return read(file)

    try:
        return patiently(attempt)
    except OSError as error:
        if error.errno in UNREADABLE:
            raise DamagedCheckpoint(f"{path}: {error.strerror or error}") from None
        raise StorageFailure(
            f"{path} can't be read: {error.strerror or error} (tried again for a while). The checkpoint is left as it "
            "is. Look at the disk, the network or the permissions, then run the same command again"
        ) from error


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest's bytes, which include their own SHA-256, so that any change in them shows."""
    plain = {key: value for key, value in manifest.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(plain, indent=1, sort_keys=True).encode()).hexdigest()
    return json.dumps({**plain, "sha256": digest}, indent=1, sort_keys=True).encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint folder, checked itself (for the other files see `verify`).

    Raises:
        DamagedCheckpoint: it is missing or changed.
        StorageFailure: the system refuses to read it.
        UserFault: it is of another format version.
    """
    content = read_patiently(path / MANIFEST, lambda file: file.read(MAX_MANIFEST_BYTES))
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path}: {MANIFEST} can't be read: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise DamagedCheckpoint(f"{path}: {MANIFEST} is not a checkpoint's manifest")
    if content != _sealed(manifest):
        raise DamagedCheckpoint(f"{path / MANIFEST}: SHA-256 differs: the file changed after it was written")
    if manifest.get("format") != FORMAT:
        raise UserFault(
            f"the checkpoint {path} was made by minigpt {shown(str(manifest.get('minigpt')))[1:-1]} in format "
            f"{shown(manifest.get('format'))}; this is minigpt {__version__}, which reads format {FORMAT}. "
            "Use the version that made it, or a newer one"
        )
    return manifest


def verify(path: Path) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest.

    Returns:
        The manifest.

    Raises:
        DamagedCheckpoint: a file is missing, has another size or another SHA-256; it names the first one.
        StorageFailure: the system refuses to read a file.
    """
    manifest = read_manifest(path)
    for name, entry in manifest["files"].items():
        if not isinstance(entry, dict) or not _FILE.fullmatch(name):
            raise DamagedCheckpoint(f"{path}: {MANIFEST} names {name!r}, which is no file of a checkpoint")
        verify_file(path / name, entry)
    return manifest


def verify_file(path: Path, entry: Mapping[str, Any]) -> None:
    """Check a file against its entry in the manifest.

    Raises:
        DamagedCheckpoint: it is missing, has another size or another SHA-256.
        StorageFailure: the system refuses to read it.
    """
    size, digest = read_patiently(path, _size_and_sha256)
    if size != entry.get("bytes"):
        raise DamagedCheckpoint(f"{path}: {size} bytes; the manifest says {entry.get('bytes')}")
    if digest != entry.get("sha256"):
        raise DamagedCheckpoint(f"{path}: SHA-256 differs: the file changed after it was written")


def _size_and_sha256(file: BufferedReader) -> tuple[int, str]:
    return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint to `<name>.damaged` (`.damaged-2`, ...), so that it is neither used nor lost."""
    target, count = path.with_name(path.name + ".damaged"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.damaged-{count}")
    os.rename(path, target)
    return target


def latest_usable(folder: Path, *, say: Callable[[str], object] = print) -> Path | None:
    """Return the newest checkpoint that verifies. Damaged ones are renamed, and a line says so.

    Returns:
        Its folder, or None if there are no checkpoints at all.

    Raises:
        NoUsableCheckpoint: there are checkpoints, but none verifies.
    """
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path)
            return path
        except DamagedCheckpoint as damage:
            aside = set_aside(path)
            say(f"A checkpoint is damaged: {damage}. Set aside as {aside.name}; trying the one before it.")
    if damaged := sorted(folder.glob("step-*.damaged*")):
        raise NoUsableCheckpoint(
            f"no checkpoint in {folder} can be used; training is NOT started over.\n"
            + "\n".join(f"  {_damage(path)}" for path in reversed(damaged))
            + "\nRestore one from a backup, or start another run with run.dir=NEW_DIR"
        )
    return None


def _damage(path: Path) -> str:
    """Return what is wrong with a checkpoint that was set aside."""
    try:
        verify(path)
    except (DamagedCheckpoint, StorageFailure, UserFault) as damage:
        return str(damage)
    return f"{path}: whole again; rename it without .damaged to use it"


def sweep_unfinished(folder: Path) -> None:
    """Remove what killed processes left half written (never what a living process is writing)."""
    for path in folder.glob(".step-*.tmp-*") if folder.is_dir() else ():
        match = _UNFINISHED.fullmatch(path.name)
        if match and not _alive(int(match.group(1))):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # our own earlier try
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has a number as large
        return False
    except OSError:
        return True  # another user's process
    return True


def best_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the lowest recorded validation loss; the newest if none was validated."""
    losses: dict[Path, Any] = {}
    for path in list_checkpoints(folder):
        with contextlib.suppress(DamagedCheckpoint):
            losses[path] = read_manifest(path).get("val_loss")
    validated = [path for path, loss in losses.items() if isinstance(loss, int | float) and math.isfinite(loss)]
    return min(reversed(validated), key=losses.__getitem__, default=next(reversed(losses), None))


def prune(folder: Path, *, keep_last: int, keep_every_steps: int) -> None:
    """Remove old checkpoints: all but the newest `keep_last`, the best, and every `keep_every_steps`-th step.

    The newest one that a run can go back to stays as well (`bad_steps` in a manifest: steps skipped in a row when
    it was made). Called only after the newest one verified; what can't be removed stays, since the run matters more.
    """
    with contextlib.suppress(OSError, StorageFailure, UserFault):  # UserFault: one of another version's among them
        checkpoints = list_checkpoints(folder)
        kept = {best_checkpoint(folder), next(filter(_is_good, reversed(checkpoints)), None)}
        for path in checkpoints[: -max(keep_last, 2)]:
            if path not in kept and not (keep_every_steps and step_of(path) % keep_every_steps == 0):
                _remove(path)


def _is_good(path: Path) -> bool:
    try:
        return not read_manifest(path).get("bad_steps")
    except DamagedCheckpoint:
        return False


def discard_from(folder: Path, step: int) -> None:
    """Remove the checkpoints of `step` and later: the run goes back to before them."""
    for path in list_checkpoints(folder):
        if step_of(path) >= step:
            _remove(path)


def _remove(path: Path) -> None:
    doomed = path.with_name(f".{path.name}.tmp-{os.getpid()}-old")  # renamed first: never a half-removed checkpoint
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
