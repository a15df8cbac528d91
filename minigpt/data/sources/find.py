"""Finds the files that `data.source` names, and says by their names which it leaves out. No file is opened.

A source is a file, a folder, a glob, a URL of any file system that fsspec knows, or a list of these
(minigpt/config/sources.py). The files of a URL are copied; the folder of a copy is named after the URL and the version
that its server states.
"""

import errno
import fnmatch
import glob
import hashlib
import json
import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from minigpt.config.schema import DataConfig
from minigpt.config.sources import expand, is_url, split_list
from minigpt.data.readers.document import File
from minigpt.faults import UserFault
from minigpt.files import replaced
from minigpt.redact import redact
from minigpt.screen import Progress, Say, size_text


class SourceGone(UserFault):
    """Raised when the text is not where it should be; tokens prepared from it earlier may still be there."""


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
            by_path.setdefault(os.path.abspath(file.path), replace(file, is_val=key == "val_source"))
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
        return [replace(local_file(path, path.name), is_named=True)]
    else:
        files = _globbed(path, data_dir)
        if all(file.left_out for file in files):
            raise SourceGone(f"data.{key}={place} does not exist (looked for {path.absolute()})")
    files = [replace(file, left_out=file.left_out or _pattern_to_skip(file.label, data)) for file in files]
    return sorted(files, key=lambda file: os.fsencode(file.label))


def _pattern_to_skip(label: str, data: DataConfig) -> str:
    """Return why a file with this label is not read, or ""."""

    def matches(patterns: str) -> bool:
        names = (label, label.rpartition("/")[2])
        return any(fnmatch.fnmatch(name, pattern.strip()) for name in names for pattern in patterns.split(","))

    if data.include and not matches(data.include):
        return f"not in data.include={data.include}"
    return f"in data.exclude={data.exclude}" if data.exclude and matches(data.exclude) else ""


def _globbed(path: Path, data_dir: Path) -> list[File]:
    """Return the files that a glob names, and all files of the folders that it names. ** names files alone."""
    fixed = next((number for number, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    tokens, files = data_dir.resolve(), list[File]()
    for place in map(Path, glob.glob(str(path), recursive=True)):
        label = place.relative_to(Path(*path.parts[:fixed])).as_posix()
        if tokens in (place.resolve(), *place.resolve().parents):
            continue
        if place.is_file():
            files.append(local_file(place, label))
        elif "**" not in path.parts and place.is_dir() and not place.is_symlink():
            files += _walk(place, f"{label}/", data_dir)
    return files


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

    tokens, files = data_dir.resolve(), list[File]()
    for parent, folders, names in os.walk(root, onerror=refuse):
        for name in list(folders):
            path = Path(parent, name)
            linked = "a link to a folder" if path.is_symlink() else ""
            if why := "hidden" if name.startswith(".") else "data.dir" if path.resolve() == tokens else linked:
                add(path, why)
                folders.remove(name)
        for name in names:
            add(Path(parent, name), "hidden" if name.startswith(".") else "")
    return files


def list_url(url: str, folder: Path) -> list[File]:
    """Return the files that a URL names; their copies below `folder` need not exist yet.

    The URL is of a file, of a folder, or has a `*`.

    Raises:
        SourceGone: nothing is there, or the server refuses it.
    """
    try:
        system, path = _file_system(url)
        is_http = url.startswith(("http://", "https://"))
        if "*" in path:
            paths = [address for address in system.glob(path) if is_http or not system.isdir(address)]
        elif path.endswith("/") if is_http else system.isdir(path):  # a web server has no folders, but pages that list
            paths = system.find(path)
        else:
            paths = [path]
        if not paths:
            raise FileNotFoundError("nothing is there")
        infos = [system.info(address) for address in paths]
    except ModuleNotFoundError:  # faults.py says what to install
        raise
    except Exception as error:  # of aiohttp, botocore, fsspec ...: not all of them are an OSError
        raise _gone(url, error) from None
    names = [unquote(urlsplit(address).path) if is_http else address for address in paths]
    root = posixpath.commonpath([posixpath.dirname(name) for name in names])
    files = []
    for name, address, info in zip(names, paths, infos, strict=True):
        label = name.removeprefix(root).strip("/")
        version = {key: value for key, value in info.items() if key != "url"}  # a redirection may be signed anew
        stamp = hashlib.sha256(json.dumps([url, version], sort_keys=True, default=str).encode()).hexdigest()[:16]
        copy = folder / stamp / label.rpartition("/")[2][-200:]
        files.append(File(copy, label, info.get("size") or 0, stamp, url, address, is_named=paths == [path]))
    return files


def fetch(files: Sequence[File], say: Say) -> None:
    """Copy the files of URLs that have no copy yet.

    Raises:
        SourceGone: one can't be fetched.
        OSError: a copy can't be written.
    """
    missing = [file for file in files if file.address and not file.path.exists()]
    if not missing:
        return
    import fsspec

    total = sum(file.size for file in missing)
    say(f"data: fetching {len(missing):,} files, {size_text(total)}, to {missing[0].path.parents[1]}")
    told = fsspec.Callback()
    told.relative_update = Progress("data: fetching", total, say)
    for file in missing:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replaced(file.path) as copy:
                _file_system(file.address)[0].get_file(file.place, str(copy), callback=told)
                if file.size and (size := copy.stat().st_size) != file.size:
                    raise ConnectionError(f"{size:,} of {file.size:,} bytes came")
        except Exception as error:
            written = str(file.path.parent) in str(getattr(error, "filename", ""))
            if written or getattr(error, "errno", 0) == errno.ENOSPC:
                raise  # a copy can't be written
            raise _gone(file.address, error) from None


def _file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    import fsspec

    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        import aiohttp  # by default fsspec ends each transfer after five minutes

        limits = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)
        options = {"client_kwargs": {"timeout": limits}, "headers": {"Accept-Encoding": "identity"}}
    system, path = fsspec.core.url_to_fs(url, **options)
    return system, path


def _gone(url: str, error: Exception) -> SourceGone:
    reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
    return SourceGone(f"data.source={redact(url)} can't be read: {reason}. Check the address, or fetch it yourself")
