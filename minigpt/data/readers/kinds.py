"""Recognises files that are not text by their first bytes."""

import codecs

HEAD_BYTES = 512

_KINDS = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive or an office document",
    b"\x1f\x8b": "gzip data without .gz at the end of its name",
    b"\x28\xb5\x2f\xfd": "zstd data, unpack it first",
    b"\xfd7zXZ": "xz data, unpack it first",
    b"BZh": "bzip2 data, unpack it first",
    b"PAR1": "a Parquet table, write its text to a .jsonl file first",
    b"SQLite format 3": "an SQLite database",
    b"\x7fELF": "a program",
    b"\x93NUMPY": "a NumPy array",
}


def kind_of_binary(head: bytes, encoding: str) -> str | None:
    """What a file is that begins with `head`; None if it may be text in this encoding."""
    for start, kind in _KINDS.items():
        if head.startswith(start):
            return kind
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or encoding != "utf-8":
        return None
    return "binary data: it holds NUL bytes" if b"\0" in head else None
