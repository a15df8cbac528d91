"""Finds the files that `data.source` names, and says by their names which it leaves out. No file is opened.

A source is a file, a folder, a glob, a URL, or a list of these (minigpt/config/sources.py).
"""

import fnmatch
import glob
import os
from dataclasses import replace
from pathlib import Path, PurePath

from minigpt.config.schema import DataConfig
from minigpt.config.sources import expand, is_url, split_list
from minigpt.data.readers.document import File
from minigpt.data.sources.download import SourceGone, list_url
from minigpt.faults import UserFault

INSTALLED = ("node_modules", "site-packages", "venv")  # folders of other people's code
GENERATED = "*.svg,*.map,*.min.js,*.min.css,*.lock,package-lock.json,pnpm-lock.yaml,go.sum"


def find_files(key: str, data: DataConfig) -> list[File]:
    """Return the files of `data.<key>`, also the files that are left out.

    Raises:
        SourceGone: nothing is at these places, or it can't be listed.
    """
    source: str = getattr(data, key) or ""
    listed = split_list(source) or [source]
    by_path = dict[str, File]()
    for place in listed:
        prefix = f"{Path(place).name}/" if len(listed) > 1 else ""
        for file in _files_at(key, place, data, prefix):
            at = os.path.abspath(file.path)
            if at not in by_path or file.is_named:  # by itself, after its folder
                by_path[at] = replace(file, is_val=key == "val_source")
    return list(by_path.values())


def typed_path(text: str) -> Path:
    """Return a path as it was typed; a leading ~ is the home folder, unless a file here has that name."""
    return Path(expand(text))


def local_file(path: Path, label: str) -> File:
    """Return a file of this machine as it is now."""
    status = path.stat()
    return File(path, label, status.st_size, str(status.st_mtime_ns))


def _files_at(key: str, place: str, data: DataConfig, prefix: str) -> list[File]:
    """Return the files at one place, in bytewise order of their labels, which begin with `prefix` inside a folder."""
    path, data_dir = typed_path(place), typed_path(data.dir)
    if is_url(place) and not path.exists():
        files = list_url(place, data_dir / "fetched")
    elif path.is_dir():
        if path.resolve() == data_dir.resolve():
            raise UserFault(f"data.{key}={path} is data.dir itself. Name another place for the tokens: data.dir=DIR")
        files = _walk(path, prefix, data_dir)
    elif path.is_file():
        files = [replace(local_file(path, path.name), is_named=True)]
    elif not (files := _globbed(path, data_dir)):
        wrong = "matches no file" if glob.has_magic(place) else "does not exist"
        raise SourceGone(f"data.{key}={place} {wrong} (looked for {path.absolute()})")
    files = [replace(file, left_out=file.left_out or _pattern_to_skip(file, data)) for file in files]
    return sorted(files, key=lambda file: os.fsencode(file.label))


def _pattern_to_skip(file: File, data: DataConfig) -> str:
    """Return why a file is not read, or "". A pattern stands for a path or a name, of the file or of a folder above."""

    def matches(patterns: str) -> bool:
        path = PurePath(file.label.lower())
        names = (*path.parts, *map(str, (path, *path.parents[:-1])))
        return any(fnmatch.fnmatch(name, end.strip(" /").lower()) for name in names for end in patterns.split(","))

    if data.include and not file.is_named and not matches(data.include):
        return f"not in data.include={data.include}"
    if not data.include and not file.is_named and matches(GENERATED):
        return "drawn or written by a program; 'data.include=*' reads all"
    return f"in data.exclude={data.exclude}" if data.exclude and matches(data.exclude) else ""


def _globbed(path: Path, data_dir: Path) -> list[File]:
    """Return the files that a glob names, and all files of the folders that it names. ** names files alone."""
    fixed = next((number for number, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    root, deep, skipped, files = Path(*path.parts[:fixed]), "**" in path.parts, dict[Path, str](), list[File]()
    for place in map(Path, glob.glob(str(path), recursive=True)):
        label = place.relative_to(root).as_posix()
        if data_dir.resolve() in (place.resolve(), *place.resolve().parents):
            continue
        # A folder that the glob only passes through was not typed: it is left out as inside a named folder.
        for folder in [*reversed(place.parents)][len(root.parents) + 1 :] if deep else [place] * place.is_dir():
            if folder not in skipped:
                skipped[folder] = why = _why_not_entered(folder, data_dir)
                files += [File(folder, folder.relative_to(root).as_posix(), left_out=why)] * bool(why)
            if skipped[folder]:
                break
        else:
            if place.is_file():
                files.append(local_file(place, label))
            elif not deep and place.is_dir():
                files += _walk(place, f"{label}/", data_dir)
    return files


def _why_not_entered(folder: Path, data_dir: Path) -> str:
    """Return why a folder that nobody named is not read, or ""."""
    if folder.name.startswith("."):
        return "hidden"
    if folder.resolve() == data_dir.resolve():
        return "data.dir"
    if folder.is_symlink():
        return "a link to a folder"
    if folder.name in INSTALLED:
        return "installed packages"
    if (folder / "metrics.jsonl").exists():
        return "a run of minigpt"
    return "tokens of minigpt" if (folder / "prepared.json").exists() else ""


def _walk(root: Path, prefix: str, data_dir: Path) -> list[File]:
    """Return the files of a folder, and the folders that are not entered, with the reason."""

    def refuse(error: OSError) -> None:
        raise UserFault(f"{error.filename} can't be read: {error.strerror}. Get read permission or leave it out")

    def add(path: Path, why: str) -> None:
        label = prefix + path.relative_to(root).as_posix()
        try:
            files.append(replace(local_file(path, label), left_out=why))
        except OSError:
            files.append(File(path, label, left_out=why or "a broken link"))

    files = list[File]()
    for parent, folders, names in os.walk(root, onerror=refuse):
        for name in list(folders):
            if why := _why_not_entered(Path(parent, name), data_dir):
                add(Path(parent, name), why)
                folders.remove(name)
        for name in names:
            add(Path(parent, name), "hidden" if name.startswith(".") else "")
    return files
