"""Paths and addresses as settings hold them: a file, a folder, a glob, a URL, or several of these."""

import difflib
import glob
import os
import re
from pathlib import Path

from minigpt.imported_models import hub_folder
from minigpt.redact import redact

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def split_list(source: str) -> list[str]:
    """Return the places that a source names: itself if it exists, else the places between its commas."""
    listed = re.findall(r"(?:\w[\w+.-]*://[^/@]*@)?[^,]*", source)  # passwords may hold commas
    parts = [place.strip() for place in listed if place.strip()]
    return parts if not exists(source) and any(map(_may_be, parts)) else [source]


def is_url(place: str) -> bool:
    """Return whether a place is in a file system other than the machine's own: https://, s3://, memory:// ..."""
    return re.match(r"(?i)[a-z][a-z0-9+.-]+(::|://)", place) is not None


def expand(path: str) -> str:
    """Return a path, with a leading ~ as the home folder if there is no such path: configs hold paths as typed."""
    return path if os.path.exists(path) else os.path.expanduser(path)


def exists(place: str) -> bool:
    """Return whether there is a file or folder of this name."""
    return os.path.exists(expand(place))


def from_here(path: str, below: str = "") -> str:
    """Return the end of a sentence on a missing path: where it was looked up, and the closest name there or `below`."""
    place, hint = Path(expand(path)), ""
    for folder in (place.parent / below, place.parent):
        names = [name for name in os.listdir(folder) if folder / name != place] if folder.is_dir() else []
        near = difflib.get_close_matches(place.name, names, n=1, cutoff=0.8)
        hint = f" Did you mean {folder / near[0]}?" if near else hint
    return (f" (looked from {os.getcwd()})." if path and not place.is_absolute() else ".") + hint


def is_begun(run: str | None) -> bool:
    """Return whether there is a run in this folder that has checkpoints."""
    return bool(run and glob.glob(os.path.join(glob.escape(expand(str(run))), "checkpoints", "step-*")))


def is_hub_name(source: str) -> bool:
    """Return whether `owner/name` names a model on the hub: there is no such path, nor a folder of the owner's name."""
    owner = source.partition("/")[0]
    return _HUB_NAME.fullmatch(source) is not None and owner not in ("runs", "run") and not exists(owner)


def local_path(source: str | Path) -> Path:
    """Return the path of a run, checkpoint or model; a model on the hub is fetched, or taken from its copy here."""
    return hub_folder(str(source)) if is_hub_name(str(source)) else Path(expand(str(source)))


def missing(source: str) -> list[str]:
    """Return the places that don't exist, nor are globs that match something. URLs are not checked here."""
    return [place for place in split_list(source) if not _may_be(place)]


def as_one_spelling(source: str) -> str:
    """Return a source or path as all its spellings have it: `texts`, `texts/` and `./texts` name one folder."""
    return ",".join(place if is_url(place) or not place else os.path.normpath(place) for place in split_list(source))


def display_name(source: str) -> str:
    """Return a source with absolute paths and without credentials, as files and names hold it."""
    full = [place if is_url(place) else os.path.abspath(os.path.expanduser(place)) for place in split_list(source)]
    return ",".join(map(redact, full))


def _may_be(place: str) -> bool:
    return is_url(place) or exists(place) or any(glob.iglob(expand(place), recursive=True))
