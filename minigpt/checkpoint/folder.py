"""Durable checkpoint directories.

A checkpoint is a folder `step-000001000/`. It is written beside its final place, every file is flushed to the
disk, `MANIFEST.json` with size and SHA-256 of each file comes last, and one rename makes it real. So a folder
without the `.tmp` mark is whole or was damaged later, and `verify` tells which. `latest` is never stored: it is
the newest folder that verifies.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.faults import NoUsableCheckpoint, StorageFailure, UserFault
from minigpt.files import flush, sha256_of

MANIFEST = "MANIFEST.json"
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"step-(\d{9,})")


class DamagedCheckpoint(UserFault):
    """A checkpoint folder does not match its manifest."""


def step_of(path: Path) -> int:
    """Return the step in a checkpoint folder's name, or -1 for any other name."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoint folders, oldest first, verified or not."""
    return sorted((path for path in folder.glob("step-*") if step_of(path) >= 0 and path.is_dir()), key=step_of)


def require_space(folder: Path, need: int, name: str) -> None:
    """Refuse to write `need` bytes to a disk with less free space."""
    if (free := shutil.disk_usage(folder).free) < need:
        wrong = f"{name} needs {need / 1e6:.1f} MB in {folder}, and {free / 1e6:.1f} MB are free"
        fewer = "keep fewer checkpoints (checkpoint.keep_last, checkpoint.keep_every_steps)"
        raise StorageFailure(f"{wrong}. Free some space, choose another run.dir, or {fewer}")


def write_checkpoint(
    folder: Path, step: int, files: Mapping[str, bytes], facts: Mapping[str, Any], *, after: Sequence[Path] = ()
) -> Path:
    """Write `folder/step-<step>/` durably: whole, or not at all; read it back; return its path.

    Args:
        folder: the run's checkpoints/ folder, which must exist.
        step: optimizer steps done.
        files: contents by file name.
        facts: further entries of the manifest (no times and no paths: equal runs give equal bytes).
        after: files that must be on the disk before the checkpoint is.

    Raises:
        StorageFailure: the disk is full or not writable, or gives back other bytes than it was given. Earlier
            checkpoints are untouched.
    """
    final = folder / f"step-{step:09d}"
    temporary = folder / f".{final.name}.tmp"
    try:
        require_space(folder, sum(map(len, files.values())) + 65536, f"the checkpoint of step {step}")
        for path in after:
            flush(path)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        entries = {name: _write_flushed(temporary / name, content) for name, content in files.items()}
        _write_flushed(temporary / MANIFEST, sealed({"format": 1, "step": step, **facts, "files": entries}))
        flush(temporary)
        if final.exists():  # the same step from before a return to an older checkpoint
            _remove(final)
        os.rename(temporary, final)
        flush(folder)
        verify(final)
    except (OSError, DamagedCheckpoint) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, DamagedCheckpoint):
            set_aside(final)
        wrong = f"the checkpoint of step {step} could not be written to {folder}: {reason}. Earlier checkpoints are"
        raise StorageFailure(f"{wrong} untouched. Free some space, then run the same command again") from error
    return final


def _write_flushed(path: Path, content: bytes) -> dict[str, Any]:
    """Write a file to the disk, drop it from the page cache, so that reading reads the disk; return its entry."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # it is only a hint to the system
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest's bytes, which include their own SHA-256, so that any change in them shows."""
    plain = {key: value for key, value in manifest.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(plain, indent=1, sort_keys=True).encode()).hexdigest()
    return json.dumps({**plain, "sha256": digest}, indent=1, sort_keys=True).encode()


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    """Call `read` on a checkpoint's file. A missing file counts as damage; an unreadable disk does not."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DamagedCheckpoint(f"{path}: {error.strerror}") from None
    except OSError as error:
        remedy = "Look at the disk or the permissions, then run the same command again"
        raise StorageFailure(f"{path} can't be read: {error.strerror or error}. {remedy}") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint folder after checking its own hash (`verify` checks the other files).

    Raises:
        DamagedCheckpoint: it is missing or changed.
    """
    content = _read(path / MANIFEST, Path.read_bytes)
    try:
        manifest = json.loads(content)
        is_intact = content == sealed(manifest) and isinstance(manifest["files"], dict)
    except (ValueError, RecursionError, AttributeError, KeyError):
        is_intact = False
    if not is_intact:
        raise DamagedCheckpoint(f"{path / MANIFEST}: its SHA-256 differs: the file changed after it was written")
    return manifest


def verify(path: Path) -> None:
    """Compare every file of a checkpoint with its manifest.

    Raises:
        DamagedCheckpoint: a file is missing, has another size or another SHA-256; it names the first one.
    """
    for name in read_manifest(path)["files"]:
        verify_file(path, name)


def verify_file(path: Path, name: str) -> Path:
    """Compare a file with the checkpoint's manifest, and return its path.

    Raises:
        DamagedCheckpoint: it is missing, has another size or another SHA-256.
    """
    entry = read_manifest(path)["files"].get(name)
    if not isinstance(entry, dict) or not _FILE.fullmatch(name):
        raise DamagedCheckpoint(f"{path}: {MANIFEST} has no {name}")
    size, digest = _read(path / name, lambda file: (file.stat().st_size, sha256_of(file)))
    if (size, digest) != (entry.get("bytes"), entry.get("sha256")):
        raise DamagedCheckpoint(f"{path / name}: size or SHA-256 differs: the file changed after it was written")
    return path / name


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint to `<name>.damaged`, so that it is neither used nor lost."""
    target = path.with_name(path.name + ".damaged")
    shutil.rmtree(target, ignore_errors=True)  # an older damaged one of the same step
    os.rename(path, target)
    return target


def latest_usable(folder: Path, *, say: Callable[[str], object] = print) -> Path | None:
    """Return the newest checkpoint that verifies; None if there are none. Damaged ones are renamed, and a line says so.

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
    if damaged := sorted(folder.glob("step-*.damaged")):
        listed = "\n".join(f"  {path.name}" for path in reversed(damaged))
        wrong = f"no checkpoint in {folder} can be used; training is NOT started over.\n{listed}"
        raise NoUsableCheckpoint(f"{wrong}\nRestore one from a backup, or start another run with run.dir=NEW_DIR")
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove half-written folders of killed processes. Only the process that holds the run's lock may call this."""
    for path in folder.glob(".step-*.tmp*"):
        shutil.rmtree(path, ignore_errors=True)


def _readable_manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    manifests: dict[Path, dict[str, Any]] = {}
    for path in list_checkpoints(folder):
        with contextlib.suppress(DamagedCheckpoint):
            manifests[path] = read_manifest(path)
    return manifests


def best_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the lowest recorded validation loss; the newest if none was validated."""
    losses = {path: manifest.get("val_loss") for path, manifest in _readable_manifests(folder).items()}
    validated = {path: loss for path, loss in losses.items() if isinstance(loss, int | float) and math.isfinite(loss)}
    return min(reversed(validated), key=validated.__getitem__, default=next(reversed(losses), None))


def prune(folder: Path, *, keep_last: int, keep_every_steps: int) -> None:
    """Remove old checkpoints: all but the newest `keep_last`, the best, and every `keep_every_steps`-th step.

    The newest one that a run can go back to stays as well (`bad_steps` in a manifest: steps skipped in a row when
    it was made). Called only after the newest one verified; what can't be removed stays, since the run matters more.
    """
    with contextlib.suppress(OSError, StorageFailure):
        good = [path for path, manifest in _readable_manifests(folder).items() if not manifest.get("bad_steps")]
        kept = {best_checkpoint(folder), *good[-1:]}
        for path in list_checkpoints(folder)[:-keep_last]:
            if path not in kept and not (keep_every_steps and step_of(path) % keep_every_steps == 0):
                _remove(path)


def discard_from(folder: Path, step: int) -> None:
    """Remove the checkpoints of `step` and later: the run goes back to before them."""
    for path in list_checkpoints(folder):
        if step_of(path) >= step:
            _remove(path)


def _remove(path: Path) -> None:
    doomed = path.with_name(f".{path.name}.tmp-old")  # renamed first: never a half-removed checkpoint
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
