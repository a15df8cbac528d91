"""The bytes of a corpus: read in chunks, surveyed once, split into training and validation.

Bytes are kept as they are: no newline is translated and no byte-order mark dropped. Only another
`data.encoding` or `data.errors=replace` rewrites them, to UTF-8. Nothing here holds more than a few megabytes
of text at a time.
"""

import codecs
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from minigpt.data.corpus import Corpus, Document, chunks
from minigpt.faults import UserFault

_CONTINUATION = bytes(range(0x80, 0xC0))  # the bytes inside a UTF-8 character, after its first


@dataclass(frozen=True)
class Span:
    """Bytes start ... stop - 1 of a document's UTF-8."""

    document: Document
    start: int
    stop: int


@dataclass
class Survey:
    """What one reading of a whole corpus found. Sizes are of the UTF-8 text."""

    bytes: list[int] = field(default_factory=list)  # by document
    characters: list[int] = field(default_factory=list)  # by document: bytes that begin a UTF-8 character
    sha256: str = ""  # of the file; of several: of lines "SHA-256  label", as sha256sum writes them
    alphabet: set[str] = field(default_factory=set)
    crlf: int = 0
    nul: int = 0
    marks: int = 0  # documents that begin with a byte-order mark


def read(corpus: Corpus, span: Span) -> Iterator[bytes]:
    """The bytes of a span as UTF-8, in chunks cut anywhere.

    Raises:
        UserFault: bytes that are not text in the corpus's encoding, with file, offset and value; no permission; the
            file is shorter than it was.
    """
    position = 0  # of the next chunk in the UTF-8 text
    for chunk in _utf8(corpus, span.document):
        start, position = position, position + len(chunk)
        if position > span.start:
            yield chunk[max(0, span.start - start) : span.stop - start]
        if position >= span.stop:
            return
    raise UserFault(f"{span.document.path} became shorter while it was read; wait until it is complete and try again")


def text_bytes(spans: list[Span]) -> int:
    """Bytes of text in spans."""
    return sum(span.stop - span.start for span in spans)


def first_bytes(spans: list[Span], limit: int) -> list[Span]:
    """The spans cut after `limit` bytes of text."""
    cut = []
    for span in spans:
        stop = min(span.stop, span.start + limit)
        if stop > span.start:
            cut.append(Span(span.document, span.start, stop))
            limit -= stop - span.start
    return cut


def survey(corpus: Corpus, *, alphabet: bool = False, progress: Callable[[int], None] = lambda n_bytes: None) -> Survey:
    """Read a whole corpus once: check that it is text, count, and take its SHA-256.

    Args:
        corpus: of any size.
        alphabet: also collect the characters.
        progress: called with the number of bytes read since the last call.

    Raises:
        UserFault: as `read`; or there is nothing but white space in it.
    """
    found, lines, blank = Survey(), [], True
    for document in corpus.documents:
        digest, last = hashlib.sha256(), b""
        found.bytes.append(0)
        found.characters.append(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        for chunk in _utf8(corpus, document, seen=digest.update):
            if not found.bytes[-1]:
                found.marks += chunk.startswith(codecs.BOM_UTF8)
            found.bytes[-1] += len(chunk)
            found.characters[-1] += len(chunk.translate(None, _CONTINUATION))
            found.crlf += (last + chunk).count(b"\r\n")
            found.nul += chunk.count(0)
            blank = blank and not chunk.strip()
            last = chunk[-1:]
            if alphabet:
                found.alphabet.update(decoder.decode(chunk))
            progress(len(chunk))
        lines.append(f"{digest.hexdigest()}  {document.label}\n")
    if len(lines) == 1:
        found.sha256 = lines[0][:64]
    else:
        found.sha256 = hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    if blank:
        where = ", ".join(str(document.path) for document in corpus.documents[:3])
        raise UserFault(
            f"the text is nothing but white space ({sum(found.bytes):,} bytes in {where}); wanted some text"
        )
    return found


def split(corpus: Corpus, found: Survey, val_fraction: float) -> tuple[list[Span], list[Span]]:
    """Spans for training and for validation. The rule is fixed, so a text is always split the same way.

    stdlib: whole files; a file is for validation if the hash of its path falls into the fraction.
    Others: the first int(n * (1 - val_fraction)) of the n characters are for training, the rest for validation
    (bytes instead of characters where the bytes are no UTF-8).

    Raises:
        UserFault: one of them would be empty.
    """
    if corpus.name == "stdlib":
        whole = [Span(document, 0, size) for document, size in zip(corpus.documents, found.bytes, strict=True)]
        train = [span for span in whole if not _held_out(span.document.label, val_fraction)]
        val = [span for span in whole if _held_out(span.document.label, val_fraction)]
    else:
        train, val = _split_at(corpus, found, val_fraction)
    for name, spans, remedy in (("train", train, "smaller"), ("val", val, "larger")):
        if not spans:
            raise UserFault(
                f"the {name} split is empty: {sum(found.characters):,} characters with data.val_fraction="
                f"{val_fraction:g} leave nothing for it. Wanted at least one character on each side: use more text "
                f"or a {remedy} data.val_fraction"
            )
    return train, val


def describe_split(name: str, val_fraction: float) -> str:
    """The rule of `split` in one sentence."""
    if name == "stdlib":
        return f"whole files by the hash of their path, about {val_fraction:g} of them for validation"
    return f"the last {val_fraction:g} of the characters for validation"


def _split_at(corpus: Corpus, found: Survey, val_fraction: float) -> tuple[list[Span], list[Span]]:
    # UTF-8 has at least one character per four bytes; what has fewer is no UTF-8, and its bytes are counted.
    text = 4 * sum(found.characters) >= sum(found.bytes)
    counts = found.characters if text else found.bytes
    border = int(sum(counts) * (1 - val_fraction))
    train: list[Span] = []
    val: list[Span] = []
    for document, size, count in zip(corpus.documents, found.bytes, counts, strict=True):
        cut = size if border >= count else _byte_offset(corpus, document, border) if text else border
        if cut > 0:
            train.append(Span(document, 0, cut))
        if cut < size:
            val.append(Span(document, cut, size))
        border = max(0, border - count)
    return train, val


def _byte_offset(corpus: Corpus, document: Document, character: int) -> int:
    """Where character number `character` of a document begins."""
    position = 0
    if character == 0:
        return 0
    for chunk in _utf8(corpus, document):
        count = len(chunk.translate(None, _CONTINUATION))
        if character < count:
            low, high = 0, len(chunk)  # the longest prefix with `character` characters begun ends where the next begins
            while low < high:
                middle = (low + high + 1) // 2
                if len(chunk[:middle].translate(None, _CONTINUATION)) <= character:
                    low = middle
                else:
                    high = middle - 1
            return position + low
        character -= count
        position += len(chunk)
    return position


def _held_out(label: str, val_fraction: float) -> bool:
    word = int.from_bytes(hashlib.sha256(f"minigpt validation:{label}".encode()).digest()[:8])
    return word < val_fraction * 2**64


def _utf8(corpus: Corpus, document: Document, seen: Callable[[bytes], object] = lambda chunk: None) -> Iterator[bytes]:
    """A document's bytes as UTF-8; `seen` gets them as they are in the file."""
    if corpus.raw and corpus.encoding == "utf-8":
        for chunk in chunks(document.path):
            seen(chunk)
            yield chunk
        return
    decoder = codecs.getincrementaldecoder(corpus.encoding)(corpus.errors)
    as_is = corpus.encoding == "utf-8" and corpus.errors == "strict"  # only checked, not rewritten
    position = 0
    for chunk in itertools.chain(chunks(document.path), [b""]):
        seen(chunk)
        begin = position - len(decoder.getstate()[0])  # bytes of a character that the last chunk cut wait in it
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise UserFault(
                f"{document.path}: byte 0x{error.object[error.start]:02X} at offset {begin + error.start:,} is not "
                f"valid {corpus.encoding} ({error.reason}). If the text is in another encoding, name it: "
                "data.encoding=latin-1; to read bad bytes as U+FFFD: data.errors=replace; to train on the bytes as "
                "they are: tokenizer=byte"
            ) from None
        position += len(chunk)
        yield chunk if as_is else text.encode("utf-8", corpus.errors)
