"""Plain text: a file is a document, or several with `data.separator`. Other files are known by their beginning."""

import codecs
import itertools
import re
from collections.abc import Iterator

from minigpt.data.readers.document import BadFile, Document, File, ReadOptions
from minigpt.data.readers.jsonl import records

HEAD_BYTES = 512  # by which a file that is no text is recognised
SAMPLE_BYTES = 1 << 12  # by which base64 is recognised
DOCUMENT_HEAD_BYTES = 1 << 20  # of a document, by whose hash its side of the split is chosen
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
GUESS_BYTES = 1 << 15  # before and after a byte that is no UTF-8, by which its encoding is guessed
ENCODED = re.compile(rb"[A-Za-z0-9+/]{60,}")  # a line of base64
COMMON = ["cp1252", "cp1251", "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp1253", "cp1255"]  # tried first

# The first bytes of files that are no text. What is not listed is known by its NUL bytes.
_KINDS = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "a PDF document: pdftotext converts it",
    b"PK\x03\x04": "a ZIP archive (unzip), or an office document: pandoc -t plain converts .docx, .odt and .epub",
    b"\x1f\x8b": "gzip data without .gz at the end of its name",
    b"BZh": "bzip2 data without .bz2 at the end of its name",
    b"\xfd7zXZ": "xz data without .xz at the end of its name",
    b"\x28\xb5\x2f\xfd": "zstd data without .zst at the end of its name",
    b"PAR1": "a Parquet table without .parquet at the end of its name",
}


def read_plain(file: File, options: ReadOptions, begin: int = 0, end: int | None = None) -> Iterator[Document]:
    """Yield the documents of a file. UTF-8 is kept byte by byte, other encodings are converted to it."""
    if options.separator is None:
        head = next(file.chunks(size=DOCUMENT_HEAD_BYTES), b"") if begin else None
        yield Document(file.label, _utf8(file, options, file.chunks(begin, end), begin), head)
        return
    separator = options.separator.replace("\\r", "\r").replace("\\n", "\n")  # as one types them
    mark = "".encode(options.encoding)  # of utf-8-sig
    for offset, record in records(file, separator.encode(options.encoding).removeprefix(mark), begin, end):
        text = record.strip(b"\r\n") if options.encoding == "utf-8" else record
        yield Document(f"{file.label}, byte {offset:,}", _utf8(file, options, iter([text]), offset))


def _utf8(file: File, options: ReadOptions, chunks: Iterator[bytes], position: int) -> Iterator[bytes]:
    """Yield text as UTF-8; `position` is where it begins in its file."""
    if options.raw and options.encoding == "utf-8":
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(options.encoding)(options.errors)
    as_is = options.encoding == "utf-8" and options.errors == "strict"  # only checked, not rewritten
    for chunk in itertools.chain(chunks, [b""]):
        start = position - len(decoder.getstate()[0])  # bytes of a character that the last chunk cut wait in it
        position += len(chunk)
        if as_is and start == position - len(chunk) and chunk.isascii():  # thirty times as fast as decoding
            yield chunk
            continue
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise not_valid(file, options, error, f" at offset {start + error.start:,}") from None
        yield chunk if as_is else text.encode("utf-8", options.errors)


def kind_of_binary(file: File, encoding: str) -> str:
    """Return what kind of file its first bytes show; "" if it may be text in this encoding."""
    if file.suffix == ".parquet":
        return ""  # its reader says what is wrong with it
    head = next(file.chunks(size=HEAD_BYTES), b"")[:HEAD_BYTES]
    if file.address and not file.suffix.startswith(".htm") and head.lstrip()[:14].lower() == b"<!doctype html":
        return "a web page about the file, not the file itself"
    if head[257:262] == b"ustar" or file.suffix in (".tgz", ".tbz2", ".txz"):
        return "a tar archive: tar -xf unpacks it"
    kind = next((kind for start, kind in _KINDS.items() if head.startswith(start)), "")
    return kind or "binary data: it holds NUL bytes" * (b"\0" in head and encoding == "utf-8" and head[:2] not in UTF16)


def is_base64(file: File) -> bool:
    """Return whether most of a file is base64: a note with a picture or a drawing in it. DNA has fewer characters."""
    for quarter in (1, 2, 3):
        sample = next(file.chunks(file.size * quarter // 4, size=SAMPLE_BYTES), b"")
        if sum(map(len, ENCODED.findall(sample))) <= len(sample) / 2 or len(set(sample)) < 50:
            return False
    return True


def not_valid(file: File, options: ReadOptions, error: UnicodeDecodeError, place: str = "") -> BadFile:
    """Return the fault of bytes that are not in an encoding, with the encoding that they look like."""
    from charset_normalizer import from_bytes  # rarely needed

    wrong = f"{file}: byte 0x{error.object[error.start]:02X}{place} is not valid {options.encoding} ({error.reason})"
    if kind := kind_of_binary(file, options.encoding):
        return BadFile(f"{wrong}. The file is {kind}. Leave it out: {file.remedy}")
    sample = error.object[max(0, error.start - GUESS_BYTES) : error.start + GUESS_BYTES]
    sample = sample[: sample.rfind(b"\n") + 1] or sample  # whole characters
    damaged, high = sample.decode("utf-8", "replace").count("\ufffd"), sum(byte > 127 for byte in sample)
    is_alone = file.is_named or not file.stamp
    all_files = "" if is_alone else " if all files are in it (else write this one as UTF-8)"
    leave_out = [f"{file.remedy} to leave it out"] * (not is_alone)
    if next(file.chunks(size=HEAD_BYTES), b"").startswith(UTF16):
        return BadFile(f"{wrong}. Type {', or '.join([f'data.encoding=utf-16{all_files}', *leave_out])}")
    guess = "cp1252"
    if high > 10 * damaged or error.reason == "unexpected end of data":
        guess = ""  # UTF-8 with some bad bytes, or cut inside a character
    elif high > len(sample) / 200 and (
        match := from_bytes(sample, cp_isolation=COMMON).best() or from_bytes(sample).best()
    ):
        guess = match.encoding
    remedies = [f"data.encoding={guess}{all_files}"] * bool(guess)
    if options.encoding != "utf-8" and damaged == 0:
        remedies = ["no data.encoding: this is UTF-8"]
    if guess in ("", "cp1252") and options.encoding == "utf-8":
        remedies += ["data.errors=cp1252 to read the bytes that are no UTF-8 as Windows-1252"]
    remedies += ["data.errors=replace to read them as U+FFFD"]
    if file.stamp:  # a text to score has no such settings
        remedies += ["tokenizer=byte to train on the bytes as they are", *leave_out]
    return BadFile(f"{wrong}. Type {', or '.join(remedies)}")
