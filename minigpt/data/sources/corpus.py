"""Finds the files of a corpus and their order. All later stages see documents only.

Five corpora: `stdlib` (the source of Python's own standard library, on every machine that runs this),
`shakespeare_char` (Tiny Shakespeare, fetched once), `text` (a file, or all files of a folder), `chat` (conversations,
found like text) and `tasks` (generated ones). Files come in bytewise order of their paths; a file's reader decides how
many documents are in it (minigpt/data/readers).
"""

import codecs
import hashlib
import json
import re
import struct
import sysconfig
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from minigpt.config.schema import DataConfig
from minigpt.config.sources import name_of
from minigpt.data.chat.tasks import task_file
from minigpt.data.readers import READERS, holds_records, require_packages
from minigpt.data.readers.document import BadFile, File, ReadOptions
from minigpt.data.readers.plain import HOLDS_NUL, kind_of_binary
from minigpt.data.sources.download import SourceGone, download, fetch
from minigpt.data.sources.find import find_files, local_file, typed_path
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import sha256_of, write_file
from minigpt.screen import Progress, Say

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_ROWS = ("jsonl", "ndjson", "JSONL", "NDJSON")
CONVERSATIONS = ",".join(f"*.{end}{packing}" for end in _ROWS for packing in ("", ".gz", ".zst"))  # of a folder
MAGICS = {20240520: "uint16", 20240801: "uint32"}  # the first number of llm.c's shards -> their tokens

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


_SIDES = {"train": "train", "training": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val"}
_SIDES |= {"test": "test"}
_SIDE = re.compile(
    rf"(?:.*[._-])?({'|'.join(_SIDES)})(?:[._-]\d+)?(?:-of-\d+)?"
)  # all of a file's name, without its end
_TEXT_ENDS = (*READERS, ".txt", ".tokens")


@dataclass(frozen=True)
class Corpus:
    """Files in order, and how their bytes become text.

    Attributes:
        notes: sentences about what was left out.
        rule: by which it is split: source | names | label | content | tail (minigpt/data/sources/split.py).
        signature: hash of the names, sizes and times of the files that were found.
    """

    name: str
    files: tuple[File, ...]
    options: ReadOptions = field(default_factory=ReadOptions)
    notes: tuple[str, ...] = ()
    rule: str = "tail"
    signature: str = ""

    @property
    def holds_tokens(self) -> bool:
        """Whether its files hold tokens instead of text."""
        return self.rule == "tokens"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def find_corpus(data: DataConfig, *, raw: bool = False, say: Say = print) -> Corpus:
    """Return the corpus that a config names, without having opened a file of it. `look_inside` makes it complete.

    Args:
        data: the config.
        raw: whether bytes need not be valid UTF-8.
        say: takes lines for the user.

    Raises:
        SourceGone: the source is missing or can't be fetched.
        UserFault: nothing to read, no permission, or a file that isn't Tiny Shakespeare.
    """
    options, rule, notes = ReadOptions(raw=raw), "tail", tuple[str, ...]()
    if data.name == "stdlib":
        files, notes = _stdlib()
        rule = "label"
    elif data.name == "shakespeare_char":
        files = (local_file(path := _shakespeare(data), path.name),)
    elif data.name == "tasks":
        files, options, rule = _tasks(data), ReadOptions(chat=True), "source"
    else:
        encoding, chat = codecs.lookup(data.encoding).name, data.name == "chat"
        options = ReadOptions(encoding, data.errors, raw, data.key, chat, data.separator or None)
        files, notes = _named(data if not chat else replace(data, include=data.include or CONVERSATIONS), say)
        rule = "source" if data.val_source is not None else "content"
    facts = [(file.label, file.size, file.stamp, file.is_val) for file in files]
    signature = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return Corpus(data.name, files, options, notes, rule, signature)


def look_inside(corpus: Corpus, say: Say) -> Corpus:
    """Return a corpus with the files that can be read: fetched, and left out or refused for their content.

    Raises:
        UserFault: packages are missing, or nothing is left.
    """
    fetch(corpus.files, say)
    if corpus.name not in ("text", "chat"):
        return corpus
    require_packages(corpus.files)
    tokens = set(_token_files(corpus.files))
    if strange := [file for file in corpus.files if tokens and file.path.suffix == ".bin" and file not in tokens]:
        raise UserFault(*(f"{file} is beside shards and is no shard: leave it out: {file.remedy}" for file in strange))
    progress = Progress("data: looking into the files", len(corpus.files), say, unit="files", size=1)
    files, skipped = [], defaultdict[str, list[str]](list)
    for file in corpus.files:
        beside = "" if file in tokens else "beside tokens, which are used; data.exclude=*.bin reads text"
        reason = beside if tokens else _content_to_skip(file, corpus.options.encoding)
        if reason and file.is_named and not tokens and (reason != HOLDS_NUL or file.path.suffix == ".bin"):
            raise UserFault(f"data.source={file} is {reason}; wanted text. Convert it to text first")
        if reason and not file.is_named:
            skipped[reason].append(file.label)
        else:
            files.append(file)
        progress(1)
    sides = {} if tokens or corpus.rule == "source" else _ready_split(files)
    skipped["the text to test on, by its name"] = [file.label for file in files if sides.get(file) == "test"]
    skipped["neither train nor validation by its name"] = [file.label for file in files if sides.get(file) == ""]
    files = [
        replace(file, is_val=file.is_val or sides.get(file) == "val")
        for file in files
        if sides.get(file, "train") in ("train", "val")
    ]
    notes = (*corpus.notes, *_left_out(skipped))
    if not files:
        raise UserFault("; ".join(("data.source holds no text", *notes)))
    rule = corpus.rule
    if tokens:
        rule = "tokens"
    elif "val" in sides.values():
        rule = "names"
    elif rule == "content" and len(files) == 1 and files[0].is_named and not holds_records(files[0], corpus.options):
        rule = "tail"
    return replace(corpus, files=tuple(files), notes=notes, rule=rule)


def token_header(file: File) -> tuple[int, ...] | None:
    """Return the magic, version and number of tokens with which a shard of llm.c begins; None for another file."""
    with open(file.path, "rb") as opened:
        head = opened.read(12)
    numbers = struct.unpack("<3i", head) if len(head) == 12 else (0, 0, 0)
    return numbers if numbers[0] in MAGICS else None


def _named(data: DataConfig, say: Say) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Return the files of data.source and data.val_source, and notes on what is left out by its name."""
    found = find_files("source", data, say)
    val = find_files("val_source", data, say) if data.val_source is not None else {}
    held_out = {file.path.resolve() for file, why in val.items() if not why}
    train = [file for file, why in found.items() if not why]
    files = [file for file in train if not held_out or file.path.resolve() not in held_out]
    skipped = defaultdict[str, list[str]](list)
    for file, why in (found | val).items():
        skipped[why] += [file.label] if why else []
    notes = _left_out(skipped)
    for key, source, left in (("source", data.source, train), ("val_source", data.val_source, held_out)):
        if source is not None and not left:
            raise UserFault("; ".join((f"data.{key}={name_of(source)} holds no text", *notes)))
    if not files:
        raise UserFault(f"all of data.source is in data.val_source={data.val_source}: nothing is left to train on")
    if shared := len(train) - len(files):
        notes += (f"left out {shared:,} of data.source: in data.val_source",)
    return (*files, *(file for file, why in val.items() if not why)), notes


def _left_out(skipped: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(
        f"left out {len(labels):,} ({why}): {', '.join(sorted(labels)[:3])}{' ...' if len(labels) > 3 else ''}"
        for why, labels in skipped.items()
        if labels
    )


def _token_files(files: Sequence[File]) -> list[File]:
    """Return the files that hold tokens: llm.c's have their first number, nanoGPT's have their names and no header."""
    bins = [file for file in files if file.path.suffix == ".bin" and file.path.is_file()]
    pair = {"train.bin", "val.bin"} <= {file.path.name for file in bins}
    return [file for file in bins if token_header(file) or (pair and file.path.name in ("train.bin", "val.bin"))]


def _content_to_skip(file: File, encoding: str) -> str | None:
    """Return why a file with this content is not read, or None."""
    if not file.path.is_file():
        return "no plain file"
    try:
        return kind_of_binary(file, encoding) if file.size or file.path.stat().st_size else "empty"
    except BadFile:
        return None  # named with all other bad files


def _ready_split(files: Sequence[File]) -> dict[File, str]:
    """Return train, val, test or "" for each file, if names show a split that somebody made; else {}.

    As Hugging Face's data sets have it: train-00000-of-00004.parquet and validation-..., or folders train/ and valid/.
    """

    def side(file: File) -> str:
        folder, _, name = file.label.lower().rpartition("/")
        match = _SIDE.fullmatch(PurePath(name.removesuffix(file.packing)).stem) if file.suffix in _TEXT_ENDS else None
        return _SIDES[match[1]] if match else _SIDES.get(folder.partition("/")[0], "")

    sides = {file: side(file) for file in files}
    words = {*sides.values()}
    return sides if {"train", "val"} <= words or words == {"train", "test"} else {}


def _stdlib() -> tuple[tuple[File, ...], tuple[str, ...]]:
    root = Path(sysconfig.get_path("stdlib"))
    paths, missing = dict[str, Path](), []
    for module in _STDLIB:
        source = root / f"{module}.py"
        of_module = [source] if source.is_file() else list((root / module).rglob("*.py"))
        paths |= {path.relative_to(root).as_posix(): path for path in of_module}
        missing += [] if of_module else [module]
    files = tuple(
        file
        for label, path in sorted(paths.items())
        if label not in _GENERATED and {"test", "tests"}.isdisjoint(label.split("/"))
        if (file := local_file(path, label)).size
    )
    if not files:
        remedy = "Use a Python that has it, or your own text: data=text data.source=FILE"
        raise SourceGone(f"data=stdlib needs the source of Python's standard library, which {root} lacks. {remedy}")
    return files, (f"{len(missing)} modules are not installed here: {', '.join(missing)}",) if missing else ()


def _tasks(data: DataConfig) -> tuple[File, ...]:
    folder = typed_path(data.dir)
    try:
        train, val = (local_file(task_file(folder, part), f"{part}.jsonl") for part in ("train", "val"))
    except OSError as error:
        wrong = f"{error.filename or folder} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Choose another folder: data.dir=DIR") from None
    return train, replace(val, is_val=True)


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
