"""The readers, one file a format. A new format is a function from a file to documents and its line here."""

from collections.abc import Callable, Iterator

from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.readers.plain import read_plain

Reader = Callable[[File, ReadOptions], Iterator[Document]]

READERS: dict[str, Reader] = {".txt": read_plain}  # by the end of the file's name; all others are plain text, too


def read(file: File, options: ReadOptions) -> Iterator[Document]:
    """The documents of a file.

    Raises:
        BadFile: it is not what its name says, or not text.
    """
    return READERS.get(file.path.suffix.lower(), read_plain)(file, options)
