"""What readers are given, and what they return."""

import bz2
import codecs
import glob
import gzip
import importlib
import lzma
import shlex
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from minigpt.faults import UserFault
from minigpt.redact import redact

CHUNK_BYTES = 1 << 18  # small enough that a chunk stays in the processor's cache while it is worked on


class BadFile(UserFault):
    """A file that can't be read as what it should be."""


def _as_cp1252(error: UnicodeError) -> tuple[str | bytes, int]:
    """Read bytes that are no UTF-8 as Windows wrote them: in many folders some files are older than the others."""
    if isinstance(error, UnicodeDecodeError):
        return error.object[error.start : error.end].decode("cp1252", "replace"), error.end
    return codecs.replace_errors(error)  # a lone surrogate of JSON


codecs.register_error("cp1252", _as_cp1252)  # data.errors=cp1252


def _gzip(path: Path, size: int) -> Iterator[bytes]:
    with gzip.open(path) as file:
        yield from iter(lambda: file.read(size), b"")


def _unpack(new: Callable[[], Any], path: Path, size: int) -> Iterator[bytes]:
    """Unpack stream by stream: bz2.open, lzma.open and zstandard's reader take a damaged one, or a cut, for the end."""
    stream = None
    with open(path, "rb") as file:
        while piece := file.read(size):
            while piece:
                stream = stream or new()
                yield stream.decompress(piece)
                piece, stream = (stream.unused_data, None) if stream.eof else (b"", stream)
    if stream:
        raise EOFError("its end is missing")


def _zstd(path: Path, size: int) -> Iterator[bytes]:
    zstandard: Any = importlib.import_module("zstandard")
    try:
        yield from _unpack(lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(), path, size)
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None


PACKINGS: dict[str, Callable[[Path, int], Iterator[bytes]]] = {
    ".gz": _gzip,
    ".bz2": partial(_unpack, bz2.BZ2Decompressor),
    ".xz": partial(_unpack, lzma.LZMADecompressor),
    ".zst": _zstd,
}


@dataclass(frozen=True)
class File:
    """A file of a corpus. The defaults are for a file that is only read, such as a text to score."""

    path: Path  # of a URL: of its copy
    label: str  # its path inside the corpus, with forward slashes
    size: int = 0  # bytes on the disk, packed if it is packed
    stamp: str = ""  # its time, or what a server states of its version
    address: str = ""  # the URL that names it
    place: str = ""  # its path in the file system of that URL
    is_named: bool = False  # data.source names the file itself, so it is read or refused, never left out
    is_val: bool = False  # of the validation text
    left_out: str = ""  # the reason why it is not read

    def __str__(self) -> str:
        return f"{redact(self.address)} ({self.label})" if self.address else str(self.path)

    @property
    def remedy(self) -> str:
        """What to type to leave it out."""
        return f"data.exclude={shlex.quote(glob.escape(self.label).replace(',', '?'))}"

    @property
    def or_without(self) -> str:
        """The end of a message about a file among others."""  # a text to score has no such setting
        return f". Or leave the file out: {self.remedy}" if self.stamp and not self.is_named else ""

    @property
    def packing(self) -> str:
        """How it is packed, as its name ends: .gz, .bz2, .xz, .zst or nothing."""
        end = PurePath(self.label).suffix.lower()
        return end if end in PACKINGS else ""

    @property
    def suffix(self) -> str:
        """The end of its name that says how it is read: .jsonl of notes.jsonl.gz."""
        return PurePath(self.label.lower().removesuffix(self.packing)).suffix

    def chunks(self, begin: int = 0, end: int | None = None, size: int = 0) -> Iterator[bytes]:
        """Yield its bytes begin ... end - 1, about `size` (by default CHUNK_BYTES) at a time.

        A packed file is unpacked, and always read from its beginning to its end.

        Raises:
            BadFile: it can't be unpacked.
        """
        size = size or CHUNK_BYTES
        try:
            if self.packing:
                yield from PACKINGS[self.packing](self.path, size)
                return
            with open(self.path, "rb") as file:
                file.seek(begin)
                while chunk := file.read(size if end is None else min(size, end - file.tell())):
                    yield chunk
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno:
                raise UserFault(f"{self} can't be read: {error.strerror}") from None
            wrong = f"{self} is cut or no {self.packing} file ({error})"
            raise BadFile(f"{wrong}; get it again{self.or_without}") from None


@dataclass(frozen=True)
class Document:
    """A text that belongs together: a file, or a record of one.

    Attributes:
        label: names it inside the corpus.
        chunks: its UTF-8 (any bytes where text is taken as it is), cut anywhere; to be read once, before the next
            document is taken.
        head: the document's first bytes, if its beginning is in another unit of work; else None.
    """

    label: str
    chunks: Iterator[bytes]
    head: bytes | None = None


@dataclass(frozen=True)
class ReadOptions:
    """How bytes become text."""

    encoding: str = "utf-8"
    errors: str = "strict"
    raw: bool = False  # UTF-8 is not checked: any bytes are taken as they are
    key: str = "text"  # of a record's text
    chat: bool = False  # each record is a conversation
    separator: str | None = None  # what stands between the documents of a plain text
