"""Cuts text where that does not change its tokens, so that files of any size are encoded run by run.

GPT-2's split pattern never lets a piece of non-space text run on into the white space behind it, and
looks only forward. So between a non-space character and a blank, tab or newline the text can be cut,
and both halves encode as they do in one. Where 64 KiB hold no such place (one endless word or one
endless gap) a cut is forced: it bounds the time and the stack that the tokenizer needs, and since it
follows from the bytes alone, a file gives the same tokens however it is read.
"""

import re
from collections.abc import Iterable, Iterator

LIMIT = 65536  # bytes per run at most; the tokenizer's regex overflows its stack at a million blanks

# The last byte before the cut: ASCII but no space, or the last byte of a longer character, leaving out those
# that a Unicode space can end with (U+0085, U+00A0, U+1680, U+2000-200A, 2028, 2029, 202F, 205F, 3000).
_LAST_BORDER = re.compile(rb"(?s).*[!-~\x8b-\x9e\xa1-\xa7\xaa-\xae\xb0-\xbf](?=[ \n\r\t])")


def runs(chunks: Iterable[bytes], limit: int = LIMIT) -> Iterator[bytes]:
    """Regroup chunks of one text, cut anywhere, into runs cut where it is safe.

    Args:
        chunks: the text as bytes; UTF-8 or not.
        limit: bytes per run at most.

    Yields:
        Non-empty runs whose concatenation is the text; they don't depend on the chunks' borders.
    """
    rest = b""
    for chunk in chunks:
        data, start = rest + chunk, 0
        while len(data) - start > limit:
            end = _cut(data, start, limit)
            yield data[start:end]
            start = end
        rest = data[start:]
    if rest:
        yield rest


def _cut(data: bytes, start: int, limit: int) -> int:
    border = _LAST_BORDER.match(data, start, start + limit + 1)
    if border:
        return border.end()
    end = start + limit
    while end > start + limit - 3 and data[end] & 0xC0 == 0x80:  # not inside a UTF-8 character
        end -= 1
    return end
