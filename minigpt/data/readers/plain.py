"""Plain text: a file is a document."""

import codecs
import itertools
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.kinds import HEAD_BYTES, kind_of_binary


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
                f"valid {options.encoding} ({error.reason}). {_remedy(file, options)}"
            ) from None
        position += len(chunk)
        yield chunk if as_is else text.encode("utf-8", options.errors)


def _remedy(file: File, options: ReadOptions) -> str:
    head = next(file.chunks(HEAD_BYTES), b"")
    kind = kind_of_binary(head, options.encoding)
    if kind:
        return f"The file is {kind}. Leave it out: data.exclude={file.label}"
    other = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin-1"
    return (
        f"If the text is in another encoding, name it: data.encoding={other}; to read bad bytes as U+FFFD: "
        "data.errors=replace; to train on the bytes as they are: tokenizer=byte"
    )
