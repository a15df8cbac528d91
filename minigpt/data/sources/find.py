"""Finds the files that `data.source` names, and says what it leaves out and why.

A source is a file, a folder, a glob, a URL, or a list of these (minigpt/config/sources.py). A file that is named
itself is read or refused; in a folder, a glob or a URL, files that can't be read as text are left out, with the reason.
"""

import fnmatch
import glob
import os
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from minigpt.config.schema import DataConfig
from minigpt.config.sources import at, is_url, name_of, places
from minigpt.data.readers import require_packages
from minigpt.data.readers.document import BadFile, File
from minigpt.data.readers.plain import HOLDS_NUL, kind_of_binary
from minigpt.data.sources.download import SourceGone, fetch
from minigpt.faults import UserFault

MAGICS = {20240520: "uint16", 20240801: "uint32"}  # the first number of llm.c's shards -> their tokens
BESIDE_TOKENS = "beside tokens, which are used; data.exclude=*.bin reads text"
# A file, and why it is left out. "": its content decides; None: it is named itself, so it is read or refused.
_Found = tuple[File, str | None]


def find_files(
    key: str, data: DataConfig, encoding: str, *, say: Callable[[str], object]
) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Return the files of `data.<key>` in order, and notes on what was left out.

    Raises:
        SourceGone: nothing is there, or it can't be fetched.
        UserFault: places can't be used, or packages are missing, all of which it names.
    """
    source: str = getattr(data, key) or ""
    found, faults = dict[str, _Found](), list[UserFault]()
    listed = places(source) or [source]
    for place in listed:
        prefix = f"{Path(place).name}/" if len(listed) > 1 else ""
        try:
            for file, why in _look(key, place, data, prefix=prefix, say=say):
                found.setdefault(os.path.abspath(file.path), (file, why))
        except UserFault as fault:
            faults.append(fault)
    if faults:
        kind = SourceGone if all(isinstance(fault, SourceGone) for fault in faults) else UserFault
        raise kind(*(sentence for fault in faults for sentence in fault.faults))
    require_packages([file for file, why in found.values() if not why])
    files, skipped = [], defaultdict[str, list[str]](list)
    tokens = token_files([file for file, why in found.values() if not why])
    if strange := [file for file, why in found.values() if tokens and not why and _is_no_shard(file, tokens)]:
        raise UserFault(*(f"{file.path} is beside shards of tokens and is no shard: {_head(file)}" for file in strange))
    for file, why in found.values():
        reason = why or (_content_to_skip(file, encoding) if not tokens else "" if file in tokens else BESIDE_TOKENS)
        if reason and why is None and (reason != HOLDS_NUL or file.path.suffix == ".bin"):
            raise UserFault(f"data.{key}={file.path} is {reason}; wanted text. Convert it to text first")
        if reason and why is not None:
            skipped[reason].append(file.label)
        else:
            files.append(file)
    notes = tuple(
        f"left out {len(labels):,} ({why}): {', '.join(sorted(labels)[:3])}{' ...' if len(labels) > 3 else ''}"
        for why, labels in skipped.items()
    )
    if not files:
        raise UserFault("; ".join((f"data.{key}={name_of(source)} holds no text", *notes)))
    return tuple(files), notes


def token_files(files: Sequence[File]) -> list[File]:
    """Return the files that hold tokens: llm.c's have their first number, nanoGPT's have their names and no header."""
    bins = [file for file in files if file.path.suffix == ".bin" and file.path.is_file()]
    pair = {"train.bin", "val.bin"} <= {file.path.name for file in bins}
    return [file for file in bins if token_header(file) or (pair and file.path.name in ("train.bin", "val.bin"))]


def token_header(file: File) -> tuple[int, ...] | None:
    """Return the magic, version and number of tokens with which a shard of llm.c begins; None for another file."""
    with open(file.path, "rb") as opened:
        head = opened.read(12)
    numbers = struct.unpack("<3i", head) if len(head) == 12 else (0, 0, 0)
    return numbers if numbers[0] in MAGICS else None


def _is_no_shard(file: File, tokens: Sequence[File]) -> bool:
    return file.path.suffix == ".bin" and file.path.is_file() and file not in tokens


def _head(file: File) -> str:
    """Describe a file that should be a shard, for an error sentence."""
    with open(file.path, "rb") as opened:
        head = opened.read(12)
    remedy = f"Get or make it again, or leave it out: {file.remedy}"
    return f"{file.size:,} bytes that begin with {head.hex(' ') or 'nothing'}. {remedy}"


def typed_path(text: str) -> Path:
    """Return a path as it was typed; a leading ~ is the home folder, unless a file here has that name."""
    return Path(at(text))


def in_order(files: Iterable[File]) -> tuple[File, ...]:
    """Return the files in bytewise order of their labels."""
    return tuple(sorted(files, key=lambda file: os.fsencode(file.label)))


def _look(key: str, place: str, data: DataConfig, *, prefix: str, say: Callable[[str], object]) -> Iterator[_Found]:
    """Yield the files at one place, in order; `prefix` is put before the names inside a folder."""
    path = typed_path(place)
    if is_url(place) and not path.exists():
        folder = typed_path(data.dir) / "fetched"
        files = fetch(place, folder, lambda label: not _pattern_to_skip(label, data), say)
        yield from ((file, _pattern_to_skip(file.label, data)) for file in in_order(files))
    elif path.is_dir():
        if path.resolve() == typed_path(data.dir).resolve():
            raise UserFault(
                f"data.{key}={path} is data.dir itself, where prepared tokens land; move the text to a folder of its "
                "own, or name another place for the tokens: data.dir=DIR"
            )
        walked = _walk(path, typed_path(data.dir))
        found = {File(each, prefix + each.relative_to(path).as_posix()): why for each, why in walked}
        yield from ((file, found[file] or _pattern_to_skip(file.label, data)) for file in in_order(found))
    elif path.is_file():
        if not path.stat().st_size:
            raise UserFault(f"data.{key}={path} is empty (0 bytes); wanted text")
        yield File(path, path.name), None
    elif path.exists():
        raise UserFault(f"data.{key}={path} is neither a file nor a folder; write the text to a file first")
    elif matches := _glob(path, typed_path(data.dir)):
        root = os.path.dirname(re.split(r"[*?[]", str(path))[0])
        for match, why in sorted(matches, key=lambda match: os.fsencode(match[0])):
            label = Path(os.path.relpath(match, root)).as_posix()
            if why or not match.is_dir():
                yield File(match, label), why or _pattern_to_skip(label, data)
            else:
                yield from _look(key, str(match), data, prefix=f"{label}/", say=say)
    else:
        raise SourceGone(f"data.{key}={place} does not exist (looked for {path.absolute()})")


def _pattern_to_skip(label: str, data: DataConfig) -> str:
    """Return why a file with this label is not read, or "" if its name is no reason."""

    def matches(patterns: str) -> bool:
        names = (label, label.rpartition("/")[2])
        return any(fnmatch.fnmatch(name, pattern.strip()) for name in names for pattern in patterns.split(","))

    if data.include and not matches(data.include):
        return f"not in data.include={data.include}"
    return f"in data.exclude={data.exclude}" if data.exclude and matches(data.exclude) else ""


def _content_to_skip(file: File, encoding: str) -> str | None:
    """Return why a file with this content is not read, or None."""
    if not file.path.is_file():
        return "a broken link" if file.path.is_symlink() else "no plain file"
    try:
        return kind_of_binary(file, encoding) if file.size else "empty"
    except BadFile:
        return None  # named with all other bad files


def _glob(pattern: Path, data_dir: Path) -> list[tuple[Path, str]]:
    """Return what a glob finds, each with why it is left out, or ""; [] if all is. Links to folders aren't followed."""
    if not glob.has_magic(str(pattern)):
        return []
    fixed = next(number for number, part in enumerate(pattern.parts) if glob.has_magic(part))
    root, parts = Path(*pattern.parts[:fixed]), pattern.parts[fixed:]
    if "**" in parts and root.is_dir():
        found = [
            (path, why if why != "hidden" or not parts[-1].startswith(".") else "")
            for path, why in _walk(root, data_dir)
            if path.is_dir() or _fits(path.relative_to(root).parts, parts)
        ]
    else:
        plain = set(glob.glob(str(pattern)))
        hidden = {path: "" if path in plain else "hidden" for path in glob.glob(str(pattern), include_hidden=True)}
        found = [(Path(path), _unentered(Path(path), root, data_dir) or why) for path, why in hidden.items()]
    return found if not all(why for _, why in found) else []


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether a path's names match a glob's parts, in which ** stands for any number of folders."""
    if parts[:1] == ("**",):
        return _fits(names, parts[1:]) or (len(names) > 0 and _fits(names[1:], parts))
    if not names or not parts:
        return not names and not parts
    return fnmatch.fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


def _unentered(path: Path, root: Path, data_dir: Path) -> str:
    """Return why a folder, or a folder above the path and below the root, is not entered, or ""."""
    inside = [each for each in (path, *path.parents) if each.is_relative_to(root) and each != root and each.is_dir()]
    if any(each.is_symlink() for each in inside):
        return "a link to a folder"
    return "data.dir" if any(each.resolve() == data_dir.resolve() for each in inside) else ""


def _walk(folder: Path, data_dir: Path) -> Iterator[tuple[Path, str]]:
    """Yield all files of a folder, and the folders that are not entered, each with the reason."""

    def refuse(error: OSError) -> None:
        raise UserFault(f"{error.filename} can't be read: {error.strerror}. Get read permission or leave it out")

    tokens = data_dir.resolve()
    for parent, folders, files in os.walk(folder, onerror=refuse):
        for name in list(folders):
            path = Path(parent, name)
            linked = "a link to a folder" if path.is_symlink() else ""
            why = "hidden" if name.startswith(".") else "data.dir" if path.resolve() == tokens else linked
            if why:
                folders.remove(name)
                yield path, why
        yield from ((Path(parent, name), "hidden" if name.startswith(".") else "") for name in files)
