"""Finds the files of a corpus and their order. All later stages see documents only.

Five corpora: `stdlib` (the source of Python's own standard library, on every machine that runs this),
`shakespeare_char` (Tiny Shakespeare, fetched once), `text` (a file, or all files of a folder), `chat` (conversations,
found like text) and `tasks` (generated ones). Files come in bytewise order of their paths; a file's reader decides how
many documents are in it (minigpt/data/readers).
"""

import codecs
import itertools
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from minigpt.config.schema import DataConfig
from minigpt.config.sources import is_url, places, there
from minigpt.data.chat.tasks import task_file
from minigpt.data.readers import read
from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.sources.download import SourceGone, download
from minigpt.data.sources.find import find_files, in_order, token_files, typed_path
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import sha256_of, write_file

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_ROWS = ("jsonl", "ndjson", "JSONL", "NDJSON")
CONVERSATIONS = ",".join(f"*.{end}{packing}" for end in _ROWS for packing in ("", ".gz", ".zst"))  # of a folder
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


@dataclass(frozen=True)
class Corpus:
    """Files in order, and how their bytes become text."""

    name: str
    files: tuple[File, ...]
    options: ReadOptions = field(default_factory=ReadOptions)
    notes: tuple[str, ...] = ()
    val_files: int = 0  # how many files, the last ones, are data.val_source
    rule: str = "tail"  # how it is split: label | source | names | content | tail (minigpt/data/sources/split.py)

    def documents(self) -> Iterator[Document]:
        """Return all documents, in order: the same ones with every call.

        Raises:
            UserFault: a file can't be read.
        """
        return itertools.chain.from_iterable(read(file, self.options) for file in self.files)

    @property
    def holds_tokens(self) -> bool:
        """Whether its files hold tokens instead of text."""
        return self.name == "text" and bool(token_files(self.files))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def find_corpus(data: DataConfig, *, raw: bool = False, say: Callable[[str], object] = print) -> Corpus:
    """Return the corpus that a config names; Tiny Shakespeare is fetched if it is not in data.dir yet.

    Args:
        data: the config.
        raw: whether bytes need not be valid UTF-8.
        say: takes lines for the user.

    Raises:
        SourceGone: the source is missing or can't be fetched.
        UserFault: an unknown name or encoding, nothing to read, no permission, or a file that isn't Tiny Shakespeare.
    """
    if data.name == "stdlib":
        return _stdlib()
    if data.name == "shakespeare_char":
        path = _shakespeare(data)
        return Corpus(data.name, (File(path, path.name),), ReadOptions(raw=raw))
    if data.name == "tasks":
        return _tasks(data)
    options = ReadOptions(codecs.lookup(data.encoding).name, data.errors, raw, data.key, data.name == "chat")
    if options.chat:
        data = replace(data, include=data.include or CONVERSATIONS)
    files, notes = find_files("source", data, options.encoding, say=say)
    if data.val_source is None:
        whole = options.chat or not _is_one_file(data.source or "", files)
        rule = "names" if token_files(files) else "content" if whole else "tail"
        return Corpus(data.name, files, options, notes, rule=rule)
    val_files, val_notes = find_files("val_source", data, options.encoding, say=say)
    held_out = {file.path.resolve() for file in val_files}
    train_files = tuple(file for file in files if file.path.resolve() not in held_out)
    if not train_files:
        raise UserFault(f"all of data.source is in data.val_source={data.val_source}: nothing is left to train on")
    if shared := len(files) - len(train_files):
        notes += (f"left out {shared:,} of data.source: in data.val_source",)
    return Corpus(data.name, train_files + val_files, options, notes + val_notes, len(val_files), "source")


def _tasks(data: DataConfig) -> Corpus:
    folder = typed_path(data.dir)
    try:
        files = [File(task_file(folder, part), f"{part}.jsonl") for part in ("train", "val")]
    except OSError as error:
        wrong = f"{error.filename or folder} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Choose another folder: data.dir=DIR") from None
    return Corpus(data.name, tuple(files), ReadOptions(chat=True), val_files=1, rule="source")


def _is_one_file(source: str, files: tuple[File, ...]) -> bool:
    """Return whether a source names a single file itself; for a URL its last word tells."""
    listed = places(source)
    if len(listed) > 1 or len(files) > 1:
        return False
    place = listed[0]
    last = unquote(urlsplit(place).path).rpartition("/")[2]
    return files[0].label == last if is_url(place) and not there(place) else typed_path(place).is_file()


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    files, missing = [], []
    for module in _STDLIB:
        file = root / f"{module}.py"
        found = [file] if file.is_file() else list((root / module).rglob("*.py"))
        files += [File(path, path.relative_to(root).as_posix()) for path in found]
        missing += [] if found else [module]
    files = [file for file in files if file.size and file.label not in _GENERATED]
    files = [file for file in files if {"test", "tests"}.isdisjoint(file.label.split("/"))]
    if not files:
        remedy = "Use a Python that has it, or your own text: data=text data.source=FILE"
        raise SourceGone(f"data=stdlib needs the source of Python's standard library, which {root} lacks. {remedy}")
    notes = (f"{len(missing)} modules are not installed here: {', '.join(missing)}",) if missing else ()
    return Corpus("stdlib", in_order(files), notes=notes, rule="label")


def _shakespeare(data: DataConfig) -> Path:
    path = typed_path(data.source) if data.source else typed_path(data.dir) / "tinyshakespeare.txt"
    got = sha256_of(path) if path.is_file() else "none: it is not a file"
    if got == SHAKESPEARE_SHA256:
        return path
    if data.source:
        fault = UserFault if path.exists() else SourceGone
        wrong = f"{path} is not Tiny Shakespeare: its SHA-256 is {got}, wanted {SHAKESPEARE_SHA256}"
        raise fault(f"{wrong}. For a text of your own use data=text data.source={data.source}")
    try:
        content = download(SHAKESPEARE_URL, SHAKESPEARE_SHA256)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except ConnectionError as error:
        remedy = "If you have the file, name it: data.source=FILE; without any download: data=stdlib"
        raise SourceGone(f"Tiny Shakespeare can't be fetched from {SHAKESPEARE_URL}: {error}. {remedy}") from None
    except OSError as error:
        raise StorageFailure(f"can't write {path}: {error.strerror}. Choose another folder: data.dir=DIR") from None
    return path
