"""What readers return, and what they are given."""

import glob
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.data.readers.packed import PACKINGS, DamagedPacking, unpack
from minigpt.faults import UserFault

CHUNK_BYTES = 1 << 18  # small enough that a chunk stays in the processor's cache while it is worked on


class BadFile(UserFault):
    """A file that can't be read as what it should be."""


@dataclass(frozen=True)
class Document:
    """A text that belongs together: a file, or a record of one.

    Attributes:
        label: names it inside the corpus: the path of its file, with forward slashes, and its place in it.
        chunks: its UTF-8 (any bytes where text is taken as it is), cut anywhere; to be read once, before the next
            document is asked for.
    """

    label: str
    chunks: Iterator[bytes]


@dataclass(frozen=True)
class File:
    """A file of a corpus."""

    path: Path
    label: str  # its path inside the corpus, with forward slashes

    @property
    def size(self) -> int:
        """Bytes on the disk, packed if it is packed."""
        return self.path.stat().st_size

    @property
    def remedy(self) -> str:
        """What to type to leave it out."""
        return f"data.exclude={shlex.quote(pattern_of(self.label))}"

    @property
    def packing(self) -> str:
        """How it is packed, as its name ends: .gz, .zst or nothing."""
        end = self.path.suffix.lower()
        return end if end in PACKINGS else ""

    @property
    def suffix(self) -> str:
        """The end of its name that says how it is read: .jsonl of notes.jsonl.gz."""
        return Path(self.path.name.lower().removesuffix(self.packing)).suffix

    def chunks(self, size: int = 0) -> Iterator[bytes]:
        """Yield its bytes, unpacked if its name ends in .gz or .zst, about `size` (by default CHUNK_BYTES) at a time.

        Raises:
            BadFile: it can't be unpacked.
            UserFault: it is gone or can't be read.
        """
        try:
            if self.packing:
                yield from unpack(self.path, size or CHUNK_BYTES)
                return
            with open(self.path, "rb") as file:
                while chunk := file.read(size or CHUNK_BYTES):
                    yield chunk
        except DamagedPacking as fault:
            raise BadFile(f"{self.path} {fault}; get it again, or leave it out: {self.remedy}") from None
        except OSError as error:
            raise UserFault(f"{self.path} can't be read: {error.strerror or error}") from None


def pattern_of(label: str) -> str:
    """Return a pattern for data.include and data.exclude that matches a label, and hardly any other."""
    hard = r"[,$\x00-\x1f\x7f\udc80-\udcff]|^\s+|\s+$"  # divides patterns, can't be typed, or is taken off
    return re.sub(hard, lambda found: "?" * len(found[0]), glob.escape(label))


@dataclass(frozen=True)
class ReadOptions:
    """How bytes become text."""

    encoding: str = "utf-8"
    errors: str = "strict"
    raw: bool = False  # UTF-8 is not checked: any bytes are taken as they are
    key: str = "text"  # of a record's text
    chat: bool = False  # each record is a conversation
