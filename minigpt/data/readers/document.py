"""What readers give, and what they are given."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.faults import UserFault

CHUNK_BYTES = 1 << 22


class BadFile(UserFault):
    """A file that can't be read as what it should be."""


@dataclass(frozen=True)
class Document:
    """A text that stands for itself.

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
    size: int  # bytes
    mtime_ns: int

    def chunks(self) -> Iterator[bytes]:
        """Its bytes as they are.

        Raises:
            UserFault: it is gone or can't be read.
        """
        try:
            with open(self.path, "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise UserFault(f"{self.path} can't be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class ReadOptions:
    """How bytes become text."""

    encoding: str = "utf-8"
    errors: str = "strict"
    raw: bool = False  # UTF-8 is not checked: any bytes are taken as they are
