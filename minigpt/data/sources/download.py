"""Files from the network: one whose SHA-256 is known, and those that a URL of any file system names.

A copy gets its name when all of it is there. A file at a URL is copied once, and recognised by the size and the tag or
time that its server states.
"""

import hashlib
import importlib.util
import json
import posixpath
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from minigpt.data.readers.document import CHUNK_BYTES, File
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import replaced
from minigpt.redact import redact

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 60.0
_SILENT_SECONDS = 60.0  # after so long without a byte a server counts as dead
_TRIES = 3
_VERSION = {"etag", "content-md5", "digest", "checksum", "md5", "mtime", "updated", "created", "modified"}
_VERSION |= {"last-modified", "lastmodified", "last_modified", "last_write_time"}  # of HTTP, S3, Azure and SMB
_VERSION |= {"blob_id", "crc", "date_time", "sha", "hex", "modify"}  # of hf://, zip, GitHub, git and FTP


class SourceGone(UserFault):
    """Raised when the text is not where it should be; tokens prepared from it earlier may still be there."""


def download(url: str, sha256: str) -> bytes:
    """Return the content of the file at `url`.

    It is fetched in a thread, since looking up a host name can't be given a time limit.

    Raises:
        ConnectionError: it can't be fetched; the message says why (one clause, no remedy).
    """
    from urllib.request import urlopen  # takes a tenth of a worker's start, and most workers fetch nothing

    steps: queue.Queue[bytes | Exception] = queue.Queue()

    def fetch() -> None:
        try:
            with urlopen(url, timeout=2 * _CONNECT_SECONDS) as answer:
                steps.put(b"")
                steps.put(answer.read())
        except Exception as error:
            steps.put(error)

    threading.Thread(target=fetch, daemon=True).start()
    for seconds in (_CONNECT_SECONDS, _TOTAL_SECONDS):  # connected, received
        try:
            step = steps.get(timeout=seconds)
        except queue.Empty:
            raise ConnectionError(f"no answer within {seconds:g} s") from None
        if isinstance(step, Exception):
            raise ConnectionError(str(step))
        content = step
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise ConnectionError(f"the file there has SHA-256 {got}, wanted {sha256}")
    return content


def fetch(url: str, folder: Path, wanted: Callable[[str], bool], say: Callable[[str], object]) -> list[File]:
    """Return the files that a URL names, each with a copy below `folder` if it is wanted.

    Args:
        url: of a file, of a folder, or with `*`, for any file system that fsspec knows.
        folder: for the copies; those that are there are not fetched again.
        wanted: whether the file with this name is wanted.
        say: takes lines for the user.

    Raises:
        SourceGone: nothing is there, or the server refuses it.
        UserFault: a package for this file system is missing.
        StorageFailure: the copies can't be written.
    """
    shown = redact(url)
    try:
        system, listed = _listed(url)
    except ImportError as error:
        raise UserFault(
            f"data.source={shown} needs a package that is not here ({redact(str(error))}). Type: {sys.executable} "
            "-m pip install fsspec aiohttp   and for S3 s3fs, for Google's storage gcsfs, for Azure's adlfs"
        ) from None
    except Exception as error:  # of aiohttp, botocore, fsspec ...: not all of them are an OSError
        raise _gone(shown, error) from None
    files, left = [], []
    for path, label, info in listed:
        version = {key: str(value) for key, value in sorted(info.items()) if key.lower() in _VERSION}
        digest = hashlib.sha256(json.dumps([url, path, info.get("size"), version]).encode()).hexdigest()[:16]
        copy = folder / digest / label.rpartition("/")[2][-200:]
        files.append(File(copy, label))
        if wanted(label) and not copy.exists():
            left.append((path, copy, info.get("size")))
    total = sum(size or 0 for _, _, size in left)
    if left:
        say(f"data: fetching {len(left):,} files, {total / 1e6:,.1f} MB, from {shown} to {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if total > free:
            raise StorageFailure(f"{shown} holds {total:,} bytes, and {folder} has room for {free:,}: data.dir=DIR")
        for path, copy, size in left:
            copy.parent.mkdir(exist_ok=True)
            copy_file(system, path, copy, size)
    except ConnectionError as error:
        raise _gone(shown, error) from None
    except OSError as error:
        raise StorageFailure(f"can't write {folder}: {error.strerror or error}. Choose another: data.dir=DIR") from None
    return files


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        ImportError: a package for it is missing.
    """
    if importlib.util.find_spec("fsspec") is None:
        raise ImportError("install fsspec")
    import fsspec

    options = {}
    if url.startswith(("http://", "https://")):
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=_SILENT_SECONDS)
        options = {"client_kwargs": {"timeout": limits}}
    system, path = fsspec.core.url_to_fs(url, **options)
    return system, path


def _listed(url: str) -> tuple[Any, list[tuple[str, str, dict[str, Any]]]]:
    """Return a URL's file system and, for each file, its path, a label and what the file system knows of it."""
    system, path = file_system(url)
    is_http = url.startswith(("http://", "https://"))
    if "*" in path:
        paths = [each for each in system.glob(path) if is_http or not system.isdir(each)]
    elif path.endswith("/") if is_http else system.isdir(path):  # a web server has no folders, only pages that list
        paths = system.find(path)
    else:
        paths = [path]
    if not paths:
        raise FileNotFoundError("nothing is there")
    names = [unquote(urlsplit(each).path) if is_http else each for each in paths]
    root = posixpath.commonpath([posixpath.dirname(name) for name in names])
    labels = [name.removeprefix(root).strip("/") for name in names]
    return system, [(path, label, system.info(path)) for path, label in zip(paths, labels, strict=True)]


def copy_file(system: Any, path: str, copy: Path, size: int | None, *, tries: int = _TRIES) -> None:
    """Make a whole copy of a file, or none, trying up to `tries` times.

    Raises:
        ConnectionError: it can't be read.
        OSError: it can't be written.
    """
    for attempt in range(tries):
        try:
            with replaced(copy) as temporary, open(temporary, "xb") as file:
                for chunk in _chunks(system, path):
                    file.write(chunk)
                if size is not None and file.tell() != size:
                    raise ConnectionError(f"{file.tell():,} of {size:,} bytes came")
            return
        except ConnectionError:
            if attempt == tries - 1:
                raise
            time.sleep(2.0**attempt)


def _chunks(system: Any, path: str) -> Iterator[bytes]:
    """Yield the bytes of a file; from a web server in one response, since some servers ignore ranges."""
    try:
        whole = {"block_size": 0} if "http" in str(system.protocol) else {}
        with system.open(path, "rb", **whole) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except Exception as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from None


def _gone(shown: str, error: Exception) -> SourceGone:
    reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
    return SourceGone(f"data.source={shown} can't be read: {reason}. Check the address, or fetch it yourself")
