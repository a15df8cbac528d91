"""What readers give, and what they are given."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.faults import UserFault

CHUNK_BYTES = 1 << 22


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
        """Bytes, as they lie on the disk."""
        return self.path.stat().st_size

    @property
    def suffix(self) -> str:
        """The end of its name that says how it is read: .jsonl of notes.jsonl.gz."""
        return Path(self.path.name.lower().removesuffix(".gz")).suffix

    def chunks(self, size: int = 0) -> Iterator[bytes]:
        """Yield its bytes, unpacked if its name ends in .gz, at most `size` (by default CHUNK_BYTES) at a time.

        Raises:
            BadFile: it can't be unpacked.
            UserFault: it is gone or can't be read.
        """
        try:
            with (gzip.open if self.path.name.lower().endswith(".gz") else open)(self.path, "rb") as file:
                while chunk := file.read(size or CHUNK_BYTES):
                    yield chunk
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadFile(f"{self.path} is cut or no gzip file ({error}); get it again, or leave it out") from None
        except OSError as error:
            raise UserFault(f"{self.path} can't be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class ReadOptions:
    """How bytes become text."""

    encoding: str = "utf-8"
    errors: str = "strict"
    raw: bool = False  # UTF-8 is not checked: any bytes are taken as they are
    key: str = "text"  # of a record's text
