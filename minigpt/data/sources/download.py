"""Files from the network: those that a URL of any file system names, by fsspec.

A copy gets its name when all of it is there; its folder is named after the URL and the version that its server states.
What a killed download leaves is continued, if the server sends parts and states a version.
"""

import errno
import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from minigpt.data.readers.document import File
from minigpt.faults import UserFault
from minigpt.files import flush, lock
from minigpt.redact import redact
from minigpt.screen import Progress, size_text, tell


class SourceGone(UserFault):
    """Raised when the text is not where it should be; tokens prepared from it earlier may still be there."""


def list_url(url: str, folder: Path) -> list[File]:
    """Return the files that a URL names; their copies below `folder` need not exist yet.

    The URL is of a file, of a folder, or has a `*`, on any file system that fsspec knows.

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
        stamp = _stamp(url, info)
        copy = folder / stamp / label.rpartition("/")[2][-200:]
        files.append(File(copy, label, info.get("size") or 0, stamp, url, address, is_named=paths == [path]))
    return files


def fetch(files: Sequence[File]) -> None:
    """Copy the files of URLs that are not there yet.

    Raises:
        SourceGone: one can't be fetched.
        OSError: a copy can't be written.
    """
    missing = [file for file in files if file.address and not file.path.exists()]
    if not missing:
        return
    total, folder = sum(file.size for file in missing), missing[0].path.parents[1]
    tell(f"data: fetching {len(missing):,} files, {size_text(total)}, to {folder}")
    progress = Progress("data: fetching", total)
    for file in missing:
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            with open(file.path.with_name(f".{file.path.name}.part"), "ab") as copy:
                lock(copy)
                copy.seek(0, os.SEEK_END)
                if file.path.exists():  # another process has fetched it meanwhile
                    continue
                _complete(file, copy, progress)
                if file.size and (size := copy.tell()) != file.size:
                    copy.truncate(0)
                    raise ConnectionError(f"{size:,} of {file.size:,} bytes came")
                copy.flush()
                flush(Path(copy.name))
                os.replace(copy.name, file.path)
        except Exception as error:
            place, number = getattr(error, "filename", ""), getattr(error, "errno", 0)
            if str(file.path.parent) in str(place) or number == errno.ENOSPC:
                raise  # a copy can't be written
            raise _gone(file.address, error) from None
        flush(file.path.parent)


def _complete(file: File, copy: BinaryIO, progress: Callable[[int], object]) -> None:
    """Append to a copy what it lacks; all of it where the server sends no parts, or states no size or version."""
    system, options = _file_system(file.address)[0], dict[str, Any]()
    is_http, info = file.address.startswith(("http://", "https://")), system.info(file.place)
    if _stamp(file.address, info) != file.stamp:
        raise ConnectionError("it was changed since it was found; try again")
    version = info.get("ETag", info.get("Last-Modified", "" if is_http else "stated"))
    if copy.tell() >= file.size or not version:
        copy.truncate(copy.seek(0))
    if is_http:
        part = {"Range": f"bytes={copy.tell()}-", "If-Range": version} if copy.tell() else {}
        options = {"block_size": 0, "size": 1, "headers": {"Accept-Encoding": "identity", **part}}
    with system.open(file.place, "rb", **options) as source:
        if not is_http:
            source.seek(copy.tell())
        elif source.r.status != 206:  # it is no part
            copy.truncate(copy.seek(0))
        progress(copy.tell())
        while chunk := source.read(1 << 20):
            copy.write(chunk)
            progress(len(chunk))


def _stamp(url: str, info: dict[str, Any]) -> str:
    """Return a hash of the version of a file that its server states."""
    version = {key: value for key, value in info.items() if key != "url"}  # a redirection may be signed anew each time
    return hashlib.sha256(json.dumps([url, version], sort_keys=True, default=str).encode()).hexdigest()[:16]


def _file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    import fsspec

    options = {}
    if url.startswith(("http://", "https://")):
        import aiohttp  # by default fsspec ends each transfer after five minutes

        options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=60.0)}}
    return fsspec.core.url_to_fs(url, **options)


def _gone(url: str, error: Exception) -> SourceGone:
    cause = error.__cause__ or error  # fsspec calls whatever a web server refuses a FileNotFoundError
    reason = redact(" ".join(f"{type(cause).__name__}: {cause}".split()))[:300]
    return SourceGone(f"data.source={redact(url)} can't be read: {reason}. Check the address, or fetch it yourself")
