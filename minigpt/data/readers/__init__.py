"""The readers, one file a format. A new format is a function from a file to documents and its line here."""

from collections.abc import Callable, Iterator

from minigpt.data.readers.document import Document, File, ReadOptions
from minigpt.data.readers.jsonl import read_jsonl
from minigpt.data.readers.plain import read_plain

Reader = Callable[[File, ReadOptions], Iterator[Document]]

# By the end of the file's name, .gz left out. All others are plain text.
READERS: dict[str, Reader] = {".jsonl": read_jsonl, ".ndjson": read_jsonl}


def read(file: File, options: ReadOptions) -> Iterator[Document]:
    """Return the documents of a file.

    Raises:
        BadFile: it is not what its name says, or not text.
    """
    return READERS.get(file.suffix, read_plain)(file, options)
