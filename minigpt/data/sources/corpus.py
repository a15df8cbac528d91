"""The files of a corpus, in order. All later stages see documents only.

Five corpora: `stdlib` (the source of Python's own standard library, on every machine that runs this),
`shakespeare_char` (Tiny Shakespeare, fetched once), `text` (a file, or all files of a folder), `chat` (conversations,
found like text) and `tasks` (generated ones). Files come in bytewise order of their paths; a file's reader decides how
many documents are in it (minigpt/data/readers).
"""

import codecs
import contextlib
import re
import struct
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath

from minigpt.config.schema import DataConfig
from minigpt.data.chat.tasks import task_file
from minigpt.data.readers import NAMES, holds_records, reader_of
from minigpt.data.readers.document import BadFile, File, ReadOptions
from minigpt.data.readers.plain import UTF16, is_base64, kind_of_binary, read_plain
from minigpt.data.readers.table import columns_of
from minigpt.data.shards import HEADS, fingerprint
from minigpt.data.sources.download import SourceGone, fetch
from minigpt.data.sources.find import find_files, local_file, typed_path
from minigpt.faults import UserFault
from minigpt.files import sha256_of, write_file
from minigpt.screen import Progress, number_of, size_text

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
CONVERSATIONS = "*.jsonl,*.jsonl.*,*.ndjson,*.ndjson.*"  # of a folder

# Words in the names of a split that somebody made, and the form of such a file name without its ending.
# Source: https://huggingface.co/docs/datasets/repository_structure, "Keywords"; the hash: `push_to_hub` until 2023.
_SIDES = {"train": "train", "training": "train", **dict.fromkeys(("validation", "valid", "val", "dev"), "val")}
_SIDES |= dict.fromkeys(("test", "testing", "eval", "evaluation"), "test")
_SIDE = re.compile(rf"(?:.*[._-])?({'|'.join(_SIDES)})(?:[._-]\d+)?(?:-of-\d+)?(?:-[0-9a-f]{{16}})?")
_SIDE_ENDS = (".txt", ".tokens")  # and all that holds records
_CARDS = ("readme.md", "dataset_infos.json")  # beside a split, and of no side

# Modules that 3.11, 3.12 and 3.13 do not all have, those that Linux distributions put into packages of their own
# (idlelib, tkinter, turtle, venv, ...), and tables that a program wrote (encodings, pydoc_data, token, ...).
_LEFT_OUT = """
_android_support _apple_support _bootsubprocess _colorize _ios_support _opcode_metadata _pydatetime _pylong _pyrepl
aifc antigravity asynchat asyncore cgi cgitb chunk crypt distutils encodings ensurepip idlelib imghdr imp keyword
lib2to3 mailcap msilib nntplib pipes pydoc_data smtpd sndhdr stringprep sunau telnetlib tkinter token turtle turtledemo
uu venv xdrlib
""".split()  # noqa: SIM905  a list of 43 lines does not read better
_GENERATED = {"html/entities.py", "re/_casefix.py"}


@dataclass(frozen=True)
class Corpus:
    """Files in order, and how their bytes become text.

    Attributes:
        all_files: also the files that are left out; `files` are read.
        rule: by which it is split: tokens | source | names | label | content | tail (minigpt/data/sources/split.py).
        signature: hash of the names, sizes and times of the files, before one of them was opened.
    """

    name: str
    all_files: Sequence[File]
    options: ReadOptions = field(default_factory=ReadOptions)
    rule: str = "tail"
    signature: str = ""

    @cached_property
    def files(self) -> list[File]:
        """Those that are read."""
        return [file for file in self.all_files if not file.left_out]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def notes(self) -> list[str]:
        """Sentences about what is left out."""
        reasons = defaultdict[str, list[str]](list)
        for file in self.all_files:
            reasons[file.left_out].append(file.label)
        return [
            f"left out {len(labels):,} ({why}): {', '.join(sorted(labels)[:3])}{' ...' if len(labels) > 3 else ''}"
            for why, labels in reasons.items()
            if why
        ]

    def description(self) -> list[str]:
        """Return lines that say what is left out, and in which format the other files will be read."""
        kinds = defaultdict[str, defaultdict[str, list[int]]](lambda: defaultdict(list))  # sizes of the files
        for file in self.files:
            kind = "tokens" if self.rule == "tokens" else NAMES.get(reader_of(file, self.options), "text")
            kinds[kind][file.suffix + file.packing or "no suffix"].append(file.size)
        parts = list[str]()
        for kind, ends in kinds.items():
            largest = sorted(ends, key=lambda end: -sum(ends[end]))[:6]
            of = {end: f" of {size_text(sum(ends[end]))}" * (len(ends) > 1) for end in largest}
            listed = ", ".join(f"{len(ends[end]):,} {end}{of[end]}" for end in largest) + ", ..." * (len(ends) > 6)
            parts.append(f"{sum(map(len, ends.values())):,} {kind} ({listed})")
        reading = f"reading {number_of(len(self.files), 'file')}, {size_text(self.size)}: {', '.join(parts)}"
        lines = [*self.notes, reading]
        if kinds.keys() & NAMES.values() and not self.options.chat:
            lines.append(f"the text of a record is its {self.options.key!r}; another key or column: data.key=KEY")
        if any(end.startswith((".csv", ".tsv", ".json")) for end in kinds["text"]):
            tables = [file for file in self.files if file.suffix in (".csv", ".tsv")]
            plain = (columns_of(file, self.options) for file in tables if reader_of(file, self.options) is read_plain)
            named = next((names for names in plain if all(0 < len(name) <= 30 for name in names)), [])
            names = f", like {', '.join(named[:9])}" * bool(named)
            lines.append(f"without a column or key {self.options.key!r}, CSV and JSON are read as plain text")
            lines[-1] += f"; to read another one: data.key=NAME{names}; chats: docs/DATA.md"
        if marked := sorted(end for end in kinds["text"] if end.startswith((".htm", ".ipynb"))):
            lines.append(f"{', '.join(marked)}: read with all markup; docs/DATA.md has commands that convert it")
        return lines


def find_corpus(data: DataConfig, *, raw: bool = False) -> Corpus:
    """Return the corpus that a config names, without opening a file of it; `look_inside` completes it.

    With `raw`, bytes need not be valid UTF-8.

    Raises:
        SourceGone: the source is missing or can't be fetched.
        UserFault: nothing to read, no permission, or a file that isn't Tiny Shakespeare.
    """
    options, rule = ReadOptions(raw=raw), "tail"
    if data.name == "stdlib":
        files, rule = _stdlib(), "label"
    elif data.name == "shakespeare_char":
        files = [_shakespeare(data)]
    elif data.name == "tasks":
        parts = (local_file(task_file(typed_path(data.dir), part), f"{part}.jsonl") for part in ("train", "val"))
        files = [replace(file, is_val=file.label == "val.jsonl") for file in parts]
        options, rule = ReadOptions(chat=True), "source"
    else:
        chat = data.name == "chat"
        encoding = codecs.lookup(data.encoding).name
        raw = raw and data.errors == "strict"
        options = ReadOptions(encoding, data.errors, raw, data.key, chat, data.separator or None)
        data = replace(data, include=data.include or CONVERSATIONS) if chat else data
        files, rule = find_files("source", data), "content"
        if data.val_source is not None:
            val, rule = find_files("val_source", data), "source"
            held_out = {file.path.resolve() for file in val if not file.left_out}
            shared = {file: "in data.val_source" for file in files if file.path.resolve() in held_out}
            files = [replace(file, left_out=file.left_out or shared.get(file, "")) for file in files] + val
    facts = [(file.label, file.size, file.stamp, file.is_val) for file in files if not file.left_out]
    return _refuse_nothing(Corpus(data.name, files, options, rule, fingerprint(facts)))


def look_inside(corpus: Corpus) -> Corpus:
    """Return a corpus whose files are fetched, and left out or refused for their content.

    Raises:
        UserFault: packages are missing, or nothing is left.
    """
    fetch(corpus.files)
    if corpus.name not in ("text", "chat"):
        return corpus
    tokens = set(_token_files(corpus.files))
    progress = Progress("data: looking into the files", len(corpus.all_files), unit="files", size=1)
    files, beside = [], "beside tokens, which are used; data.exclude=*.bin reads text"
    for file in corpus.all_files:
        why = file.left_out
        if tokens:
            why = why or ("" if file in tokens or file.is_named else beside)
        elif not why and (why := _content_to_skip(file, corpus.options)) and file.is_named:
            raise UserFault(f"{file} is {why}; wanted text")
        files.append(replace(file, left_out=why))
        progress(1)
    rule = "tokens" if tokens else corpus.rule
    if rule in ("content", "source"):
        files, rule = _by_names(files, rule, corpus.options)
        read = [file for file in files if not file.left_out]
        if len(read) == 1 and read[0].is_named and not holds_records(read[0], corpus.options):
            rule = "tail"
    return _refuse_nothing(replace(corpus, all_files=files, rule=rule))


def token_header(file: File) -> tuple[str, int] | None:
    """Return dtype and number of the tokens of a shard of llm.c, as it begins; None for another file."""
    with open(file.path, "rb") as opened:
        magic, _, count = struct.unpack("<3i", opened.read(12).ljust(12, b"\0"))
    return next(((dtype, count) for dtype, (known, _) in HEADS.items() if known == magic), None)


def _refuse_nothing(corpus: Corpus) -> Corpus:
    for is_val, key in {file.is_val: "val_source" if file.is_val else "source" for file in corpus.all_files}.items():
        if not any(file.is_val == is_val for file in corpus.files) and corpus.rule != "names":
            raise UserFault("; ".join((f"data.{key} holds no text", *corpus.notes)))
    return corpus


def _token_files(files: Sequence[File]) -> list[File]:
    """Return the files that hold tokens: llm.c's have their first number, nanoGPT's have their names and no header."""
    bins = [file for file in files if file.path.suffix == ".bin"]
    pair = {"train.bin", "val.bin"} <= {file.path.name for file in bins}
    return [file for file in bins if token_header(file) or (pair and file.path.name in ("train.bin", "val.bin"))]


def _content_to_skip(file: File, options: ReadOptions) -> str:
    """Return why a file with this content is not read, or ""."""
    with contextlib.suppress(BadFile):  # which is named with all other bad files
        if not (file.size or file.path.stat().st_size):
            return "empty"
        if why := kind_of_binary(file, options.encoding):
            return why
        head = next(file.chunks(size=2), b"")
        if head in UTF16 and options.encoding == "utf-8" and options.errors != "strict":  # all of it were bad bytes
            return "UTF-16: iconv -f utf-16 -t utf-8 converts it"
        if not file.is_named and reader_of(file, options) is read_plain and is_base64(file):
            return "mostly base64: a picture or a drawing in a text"
    return ""


def _by_names(files: list[File], rule: str, options: ReadOptions) -> tuple[list[File], str]:
    """Return files with what the names of a split that somebody made say of each, and the rule of the split.

    As Hugging Face's data sets have it: train-00000-of-00004.parquet and validation-..., or folders train/ and valid/.
    With data.val_source (the rule `source`), what else is to validate or to test on is not trained on.
    """

    def side(file: File) -> str:
        folder, _, name = file.label.lower().rpartition("/")
        stem = PurePath(name.removesuffix(file.packing)).stem
        is_text = file.suffix in _SIDE_ENDS or reader_of(file, options) is not read_plain
        match = _SIDE.fullmatch(stem) if is_text else None
        return _SIDES[match[1]] if match else _SIDES.get(folder.removeprefix("data/").partition("/")[0], "")

    candidates = [file for file in files if not (file.left_out or file.is_val or (rule == "source" and file.is_named))]
    sides = {file: side(file) for file in candidates}
    words = {word for file, word in sides.items() if file.label.lower() not in _CARDS}
    if "train" not in words or not words & {"val", "test"}:
        return files, rule
    reasons = {"test": "the text to test on, by its name"}
    if rule == "source":
        reasons["val"] = "the text to validate on, by its name; data.val_source is used"
    if "val" in words or words == {"train", "test"}:
        reasons[""] = "neither train nor validation by its name"
    return [
        replace(file, is_val=file.is_val or sides.get(file) == "val", left_out=file.left_out or reasons.get(word, ""))
        for file, word in ((file, sides.get(file, "named")) for file in files)
    ], "names" if rule == "content" and "val" in words else rule


def _stdlib() -> list[File]:
    root = Path(sysconfig.get_path("stdlib"))
    modules = sys.stdlib_module_names.difference(_LEFT_OUT)
    paths = [path for module in modules for path in (root / f"{module}.py", *(root / module).rglob("*.py"))]
    labels = {path.relative_to(root).as_posix(): path for path in paths if path.is_file()}
    return [
        local_file(path, label)
        for label, path in sorted(labels.items())
        if label not in _GENERATED and {"test", "tests"}.isdisjoint(label.split("/")) and path.stat().st_size
    ]


def _shakespeare(data: DataConfig) -> File:
    path = typed_path(data.source) if data.source else typed_path(data.dir) / "tinyshakespeare.txt"
    if not data.source and not path.exists():
        from urllib.request import urlopen  # slow to import, and rarely needed

        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urlopen(SHAKESPEARE_URL, timeout=4.0) as answer:
                content = answer.read()
        except Exception as error:  # of urllib, http and socket
            remedy = "If you have the file, name it: data.source=FILE; without any download: data=stdlib"
            raise SourceGone(f"Tiny Shakespeare can't be fetched from {SHAKESPEARE_URL}: {error}. {remedy}") from None
        write_file(path, content)
    digest = sha256_of(path) if path.is_file() else "none: it is not a file"
    if digest != SHAKESPEARE_SHA256:
        wrong = f"{path} is not Tiny Shakespeare: its SHA-256 is {digest}, wanted {SHAKESPEARE_SHA256}"
        raise (UserFault if path.exists() else SourceGone)(f"{wrong}. A text of your own: data=text data.source=FILE")
    return local_file(path, path.name)
