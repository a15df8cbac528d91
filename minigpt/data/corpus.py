"""Finds the files of a corpus and their order. What follows sees documents only.

Three corpora: `stdlib` (the source of Python's own standard library, on every machine that runs this),
`shakespeare_char` (Tiny Shakespeare, fetched once) and `text` (a file, or all files of a folder). Files come in
bytewise order of their paths; how many documents are in one is its reader's to say (minigpt/data/readers).
"""

import codecs
import fnmatch
import itertools
import os
import platform
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from minigpt.config.schema import DataConfig
from minigpt.data.download import download
from minigpt.data.readers import READERS, read
from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.kinds import HEAD_BYTES, kind_of_binary
from minigpt.faults import StorageFailure, UserFault
from minigpt.rundir.files import sha256_of, write_file

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# Modules that 3.11, 3.12 and 3.13 all have, without those that Linux distributions put into packages of their own
# (idlelib, tkinter, turtle, venv, ...), and without tables that a program wrote (encodings, pydoc_data, token, ...).
_STDLIB = """
__future__ _aix_support _collections_abc _compat_pickle _compression _markupbase _osx_support _py_abc
_pydecimal _pyio _sitebuiltins _strptime _threading_local _weakrefset abc argparse ast asyncio base64 bdb
bisect bz2 cProfile calendar cmd code codecs codeop collections colorsys compileall concurrent configparser
contextlib contextvars copy copyreg csv ctypes curses dataclasses datetime dbm decimal difflib dis doctest
email enum filecmp fileinput fnmatch fractions ftplib functools genericpath getopt getpass gettext glob
graphlib gzip hashlib heapq hmac html http imaplib importlib inspect io ipaddress json linecache locale
logging lzma mailbox mimetypes modulefinder multiprocessing netrc ntpath nturl2path numbers opcode operator
optparse os pathlib pdb pickle pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats
pty py_compile pyclbr pydoc queue quopri random re reprlib rlcompleter runpy sched secrets selectors shelve
shlex shutil signal site smtplib socket socketserver sqlite3 sre_compile sre_constants sre_parse ssl stat
statistics string struct subprocess symtable sysconfig tabnanny tarfile tempfile textwrap this threading
timeit tokenize tomllib trace traceback tracemalloc tty types typing unittest urllib uuid warnings wave
weakref webbrowser wsgiref xml xmlrpc zipapp zipfile zipimport zoneinfo
""".split()  # noqa: SIM905  a list of 164 lines does not read better
_GENERATED = {"html/entities.py", "re/_casefix.py"}


class SourceGone(UserFault):
    """The text is not where it should be; tokens prepared from it earlier may still be."""


@dataclass(frozen=True)
class Corpus:
    """Files in order, and how their bytes become text."""

    name: str
    files: tuple[File, ...]
    options: ReadOptions = field(default_factory=ReadOptions)
    notes: tuple[str, ...] = ()

    def read(self, file: File) -> Iterator[Document]:
        """Return the documents of one file.

        Raises:
            UserFault: it can't be read.
        """
        return read(file, self.options)

    def documents(self) -> Iterator[Document]:
        """Return all documents, in order. They can be asked for again, and are the same.

        Raises:
            UserFault: a file can't be read.
        """
        return itertools.chain.from_iterable(map(self.read, self.files))

    @property
    def formats(self) -> list[str]:
        """The formats among its files that are not plain text."""
        return sorted({file.suffix for file in self.files} & READERS.keys())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def find_corpus(data: DataConfig, *, raw: bool = False, url: str = SHAKESPEARE_URL) -> Corpus:
    """Return the corpus that a config names; Tiny Shakespeare is fetched from `url` if it is not in data.dir yet.

    Raises:
        SourceGone: the source is missing or can't be fetched.
        UserFault: unknown name or encoding, nothing to read, no permission, another file than Tiny Shakespeare.
    """
    if data.name == "stdlib":
        return _stdlib()
    if data.name == "shakespeare_char":
        path = _shakespeare(data, url)
        return Corpus(data.name, (_file(path, path.name),), ReadOptions(raw=raw))
    source = typed_path(data.source or "")
    if source.is_dir() and source.resolve() == typed_path(data.dir).resolve():
        raise UserFault(
            f"data.source={data.source} is data.dir itself, where prepared tokens land; move the text to a folder of "
            "its own, or name another place for the tokens: data.dir=DIR"
        )
    options = ReadOptions(codecs.lookup(data.encoding).name, data.errors, raw, data.key)
    files, notes = _files(source, data, options.encoding)
    return Corpus(data.name, files, options, notes)


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    found, missing = [], []
    for module in _STDLIB:
        file, package = root / f"{module}.py", root / module
        files = [file] if file.is_file() else sorted(package.rglob("*.py"))
        if not files:
            missing.append(module)
        for path in files:
            label = path.relative_to(root).as_posix()
            if not {"test", "tests"} & set(label.split("/")) and label not in _GENERATED and path.stat().st_size:
                found.append(_file(path, label))
    if not found:
        raise SourceGone(
            f"data=stdlib needs the source of Python's standard library, and {root} has none of it (Python "
            f"{platform.python_version()}). Use a Python that has its .py files, or your own text: data=text "
            "data.source=FILE"
        )
    notes = (f"{len(missing)} modules are not installed here: {', '.join(missing)}",) if missing else ()
    return Corpus("stdlib", _in_order(found), notes=notes)


def _shakespeare(data: DataConfig, url: str) -> Path:
    if data.source:
        path = typed_path(data.source)
        got = sha256_of(path) if path.is_file() else "none: it is not a file"
        if got != SHAKESPEARE_SHA256:
            raise (UserFault if path.exists() else SourceGone)(
                f"{path} is not Tiny Shakespeare: its SHA-256 is {got}, wanted {SHAKESPEARE_SHA256}. For a text of "
                f"your own use data=text data.source={data.source}"
            )
        return path
    path = typed_path(data.dir) / "tinyshakespeare.txt"
    if path.is_file() and sha256_of(path) == SHAKESPEARE_SHA256:
        return path
    try:
        content = download(url, SHAKESPEARE_SHA256)
    except ConnectionError as error:
        raise SourceGone(
            f"Tiny Shakespeare can't be fetched from {url}: {error}. If you have the file, name it: data.source=FILE; "
            "without any download: data=stdlib"
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise StorageFailure(f"can't write {path}: {error.strerror}. Choose another folder: data.dir=DIR") from None
    return path


def typed_path(text: str) -> Path:
    """A path as it was typed, a leading ~ being the home folder unless something here has that name."""
    path = Path(text)
    return Path(os.path.expanduser(text)) if text.startswith("~") and not path.exists() else path


def _files(source: Path, data: DataConfig, encoding: str) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files of a file or folder, and notes on what was left out."""
    if not source.exists():
        raise SourceGone(f"data.source={source} does not exist (looked for {source.absolute()})")
    if source.is_file():
        if not source.stat().st_size:
            raise UserFault(f"data.source={source} is empty (0 bytes); wanted text")
        return (_file(source, source.name),), ()
    if not source.is_dir():
        raise UserFault(f"data.source={source} is neither a file nor a folder; write the text to a file first")
    files, skipped = [], defaultdict[str, list[str]](list)
    for path in _walk(source, typed_path(data.dir)):
        label = path.relative_to(source).as_posix()
        why = _reason_to_skip(path, label, data, encoding)
        if why:
            skipped[why].append(label)
        else:
            files.append(_file(path, label))
    notes = tuple(
        f"left out {len(labels):,} ({why}): {', '.join(sorted(labels)[:3])}{' ...' if len(labels) > 3 else ''}"
        for why, labels in skipped.items()
    )
    if not files:
        raise UserFault("; ".join((f"data.source={source} holds no text (hidden files are left out)", *notes)))
    return _in_order(files), notes


def _reason_to_skip(path: Path, label: str, data: DataConfig, encoding: str) -> str | None:
    """Return the reason why a file of a folder is not read, or None."""

    def matches(patterns: str) -> bool:
        names = (label, path.name)
        return any(fnmatch.fnmatch(name, pattern.strip()) for name in names for pattern in patterns.split(","))

    if data.include and not matches(data.include):
        return f"not in data.include={data.include}"
    if data.exclude and matches(data.exclude):
        return f"in data.exclude={data.exclude}"
    if not path.is_file():
        return "a broken link" if path.is_symlink() else "no plain file"
    file = _file(path, label)
    if not file.size:
        return "empty"
    try:
        return kind_of_binary(next(file.chunks(HEAD_BYTES), b""), encoding)
    except BadFile:
        return None  # named with all other bad files


def _walk(folder: Path, leave_out: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise UserFault(f"{error.filename} can't be read: {error.strerror}. Give yourself permission or leave it out")

    skipped = leave_out.resolve()
    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and Path(parent, name).resolve() != skipped]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _in_order(files: Iterable[File]) -> tuple[File, ...]:
    return tuple(sorted(files, key=lambda file: os.fsencode(file.label)))


def _file(path: Path, label: str) -> File:
    try:
        status = path.stat()
    except OSError as error:
        raise UserFault(f"{path} can't be read: {error.strerror or error}") from None
    return File(path, label, status.st_size, status.st_mtime_ns)
