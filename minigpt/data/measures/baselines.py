"""Baselines: the scores on the validation text of models that only count or copy. A trained model must beat them.

They learn from the training text alone, and their scores are in bits per byte of the validation text. They are measured
once for each set of tokens and kept beside them, in baselines.json.
"""

import contextlib
import lzma
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from minigpt.data.chat.packing import Split
from minigpt.data.measures.kneser_ney import ORDER, KneserNey
from minigpt.data.measures.overlap import pieces
from minigpt.data.measures.repeats import saved_by_copying
from minigpt.data.prepared import Prepared
from minigpt.faults import UserFault
from minigpt.files import read_json, write_json
from minigpt.screen import size_text, tell

TRAIN_BYTES = 1 << 24  # of training text that the n-gram model sees at most: half a gigabyte of memory
XZ_BYTES = 1 << 23  # the same for xz, which then takes about as long as counting
VAL_BYTES = 1 << 20  # of validation text at most
BORDER_BYTES = 16  # of the packed text read at a time
SMALL_BYTES = 1 << 14
PART = 8  # the n-gram model is measured after 1 / PART of the text, too: it shows how much more text would help
PIECES = 32  # of the training text, which each hold such a part

Baseline = dict[str, Any]


def baselines(prepared: Prepared) -> list[Baseline]:
    """Return the baselines of these tokens, measured now or before: name, bits_per_byte, and of which text.

    The last two are the n-gram model, which has `after_part` and `repeats` as well (but for a mixture), and xz.

    The result is kept in the folder of the tokens, if it can be written there.
    """
    if prepared.parts:
        return _of_mixture(prepared)
    if prepared.train.answers is not None:
        return []  # of conversations, only the answers count
    path = prepared.folder / "baselines.json"
    with contextlib.suppress(UserFault, LookupError, TypeError):
        kept = read_json(path)
        if kept["fingerprint"] == prepared.fingerprint and "repeats" in kept["rows"][-2]:
            return kept["rows"]
    tell("Measuring the baselines of this text: models that only count or copy (once for a text)")
    rows = _measure(prepared.train, prepared.val)
    with contextlib.suppress(OSError):
        write_json(path, {"fingerprint": prepared.fingerprint, "rows": rows})
    return rows


def _of_mixture(prepared: Prepared) -> list[Baseline]:
    """Return the sources' baselines, each after its own training text, weighted as a mixture's bits per byte are."""
    by_source, val = [baselines(part) for part in prepared.parts.values()], prepared.val
    n_bytes = [share * val.parts[name].bytes / len(val.parts[name]) for name, share in val.shares.items()]
    mixed = list[Baseline]()
    for rows in zip(*by_source, strict=True) if all(by_source) else ():
        bits = sum(n * row["bits_per_byte"] for n, row in zip(n_bytes, rows, strict=True)) / sum(n_bytes)
        mixed.append({"name": rows[0]["name"], "bits_per_byte": bits, "of": "each source after its own training text"})
    return mixed


def _measure(train: Split, val: Split) -> list[Baseline]:
    counted, copied, text = sample_of(train, TRAIN_BYTES), sample_of(train, XZ_BYTES), sample_of(val, VAL_BYTES)
    if not text:
        return []
    with ThreadPoolExecutor(1) as thread:
        xz_bytes = thread.submit(_xz_bytes, copied, text)
        p, of_part = (KneserNey(known).probabilities(text) for known in (counted, part_of(counted)))
        ngram, after_part = (-float(np.log2(of_each).mean()) for of_each in (p, of_part))
        repeats = saved_by_copying(text, p)
        xz = max(0, 8 * xz_bytes.result() / len(text))  # xz of both texts - xz of the training text

    def of(seen: bytes) -> str:
        return " and ".join(
            f"{size_text(len(part))} of {size_text(split.bytes)} of {name} text"
            for part, split, name in ((seen, train, "training"), (text, val, "validation"))
            if len(part) < split.bytes
        )

    name = f"{ORDER}-gram of bytes, Kneser-Ney"
    return [
        {"name": name, "bits_per_byte": ngram, "after_part": after_part, "repeats": repeats, "of": of(counted)},
        {"name": "xz after the training text", "bits_per_byte": xz, "of": of(copied)},
    ]


def part_of(text: bytes) -> bytes:
    """Return 1 / PART of a text, in PIECES spread evenly over it."""
    length = max(1, len(text) // PIECES)
    return b"".join(text[start : start + length // PART] for start in range(0, len(text), length))


def sample_of(split: Split, n_bytes: int) -> bytes:
    """Return the text of a split; if it is longer than n_bytes, about n_bytes of it."""
    n_tokens = len(split) if split.bytes <= n_bytes else int(n_bytes / split.bytes * len(split))
    return b"".join(map(split.tokenizer.decode_bytes, pieces(split, n_tokens)))


def _xz_bytes(train: bytes, text: bytes) -> int:
    """Return the number of bytes that xz takes for `text` after `train`."""
    whole = train + text
    dictionary = max(1 << 16, 1 << len(whole).bit_length())
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dictionary}]
    if len(whole) <= SMALL_BYTES:  # too little text for a border that is only known to a few bytes
        with_text, without = (len(lzma.compress(part, lzma.FORMAT_RAW, filters=filters)) for part in (whole, train))
        return with_text - without
    packed = lzma.compress(whole, lzma.FORMAT_RAW, filters=filters)
    # The border between the two, to a few bytes: where unpacking has reached the end of `train`.
    reader, read, unpacked = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), 0, 0
    while unpacked < len(train):
        unpacked += len(reader.decompress(packed[read : read + BORDER_BYTES]))
        read += BORDER_BYTES
    return len(packed) - read
