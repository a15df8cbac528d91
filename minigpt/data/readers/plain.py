"""Plain text: a file is a document."""

import codecs
import itertools
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions


def read_plain(file: File, options: ReadOptions) -> Iterator[Document]:
    """The file as one document. UTF-8 is kept byte by byte, other encodings are rewritten to it."""
    yield Document(file.label, _utf8(file, options))


def _utf8(file: File, options: ReadOptions) -> Iterator[bytes]:
    if options.raw and options.encoding == "utf-8":
        yield from file.chunks()
        return
    decoder = codecs.getincrementaldecoder(options.encoding)(options.errors)
    as_is = options.encoding == "utf-8" and options.errors == "strict"  # only checked, not rewritten
    position = 0
    for chunk in itertools.chain(file.chunks(), [b""]):
        begin = position - len(decoder.getstate()[0])  # bytes of a character that the last chunk cut wait in it
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise BadFile(
                f"{file.path}: byte 0x{error.object[error.start]:02X} at offset {begin + error.start:,} is not "
                f"valid {options.encoding} ({error.reason}). If the text is in another encoding, name it: "
                "data.encoding=latin-1; to read bad bytes as U+FFFD: data.errors=replace; to train on the bytes as "
                "they are: tokenizer=byte"
            ) from None
        position += len(chunk)
        yield chunk if as_is else text.encode("utf-8", options.errors)
