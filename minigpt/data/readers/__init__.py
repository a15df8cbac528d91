"""The readers, one file a format. A new format is a function from a file to documents and its line here."""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator

from minigpt.data.readers.chat import read_chat
from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.readers.jsonl import read_jsonl
from minigpt.data.readers.parquet import read_parquet
from minigpt.data.readers.plain import read_plain
from minigpt.faults import UserFault

Reader = Callable[[File, ReadOptions], Iterator[Document]]

# By the end of the file's name, .gz and .zst left out. All others are plain text.
READERS: dict[str, Reader] = {".jsonl": read_jsonl, ".ndjson": read_jsonl, ".parquet": read_parquet}
NAMES = {".jsonl": "JSON lines", ".ndjson": "JSON lines", ".parquet": "Parquet"}

# Packages that only some files need, by the end of their names.
PACKAGES = {".zst": "zstandard", ".parquet": "pyarrow"}


def read(file: File, options: ReadOptions) -> Iterator[Document]:
    """Return the documents of a file.

    Raises:
        BadFile: it is not what its name says, or not text.
    """
    return (read_chat if options.chat else READERS.get(file.suffix, read_plain))(file, options)


def require_packages(files: Iterable[File]) -> None:
    """Refuse files that need a Python package which is not installed.

    Raises:
        UserFault: it names every such package, and the command that installs it.
    """
    faults = []
    for end, package in PACKAGES.items():
        theirs = [file.label for file in files if end in (file.packing, file.suffix)]
        if theirs and importlib.util.find_spec(package) is None:
            more = f" and {len(theirs) - 1:,} more" if len(theirs) > 1 else ""
            faults.append(
                f"{theirs[0]}{more} can't be read without the Python package '{package}'. Type: {sys.executable} -m "
                f"pip install {package}   or leave them out: data.exclude='*{end}'"
            )
    if faults:
        raise UserFault(*faults)
