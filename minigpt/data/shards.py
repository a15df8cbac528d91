"""Tokens on disk: llm.c's shards and a JSON sidecar.

A shard is 256 int32 (magic, version, count, zeros) and then `count` tokens, all little-endian. Magic and version say
how wide a token is: 20240520 and 1 uint16, 20240801 and 7 uint32 (llm.c's shards for Llama 3).

A split is `NAME-000.bin`, `NAME-001.bin`, ... with `NAME.json` beside them, written last: it holds the counts, the
bytes of text behind the tokens, the tokenizer's hash, each file's SHA-256, and their fingerprint.
"""

import bisect
import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from minigpt.data.order import window_starts
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json, sha256_of, write_json

HEADS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # dtype -> magic and version
HEADER_BYTES = 1024
VERIFY_BYTES = 1 << 28  # splits up to this size are checked against their SHA-256 whenever they are opened

_FORMAT = "minigpt-shards"


def write_sidecar(folder: Path, name: str, tokenizer: Tokenizer, facts: dict[str, Any]) -> dict[str, Any]:
    """Write the sidecar of a split whose shards are there, and return it.

    Args:
        folder: that holds the shards, or links to them.
        name: of the split.
        tokenizer: whose tokens they are.
        facts: dtype, tokens, bytes, max_token and shards (file, tokens, sha256 of each); for shards of
            any sizes also header_bytes, 0 if they have no header.
    """
    sidecar = facts | {
        "format": _FORMAT,
        "version": 1,
        "split": name,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.name,
        "tokenizer_hash": tokenizer.hash,
        "fingerprint": fingerprint([tokenizer.hash, *(shard["sha256"] for shard in facts["shards"])]),
    }
    write_json(folder / f"{name}.json", sidecar)
    return sidecar


def fingerprint(parts: list[str]) -> str:
    """Return one SHA-256 (hex) for several texts in order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class TokenSplit:
    """The tokens of one split, memory-mapped. `len()` counts them.

    Attributes:
        name: train | val.
        bytes: bytes of text behind the tokens (end-of-text tokens stand for none).
        fingerprint: SHA-256 (hex) of tokenizer and tokens.
    """

    def __init__(self, folder: Path, name: str, *, tokenizer: Tokenizer):
        """Open a split and check all of it that can be checked quickly."""
        self.name = name
        sidecar = _read_sidecar(folder, name, tokenizer)
        self.bytes: int = sidecar["bytes"]
        self.fingerprint: str = sidecar["fingerprint"]
        self._dtype = np.dtype(sidecar["dtype"])
        is_small = self._dtype.itemsize * sidecar["tokens"] <= VERIFY_BYTES
        self._shards, self._starts = [], [0]  # and which token begins each
        for entry in sidecar["shards"]:
            path = folder / entry["file"]
            shard = open_shard(path, entry["tokens"], self._dtype, sidecar.get("header_bytes", HEADER_BYTES))
            changed = is_small and sha256_of(path) != entry["sha256"]
            if changed or sidecar["max_token"] >= tokenizer.vocab_size:
                refuse_strange_token(path, shard, tokenizer)
            if changed:
                raise UserFault(f"{path} was changed since it was made: its SHA-256 is not that of {name}.json")
            self._shards.append(shard)
            self._starts.append(self._starts[-1] + len(shard))

    def __len__(self) -> int:
        return self._starts[-1]

    def window_starts(self, step: int, *, seed: int, block_size: int, sequences: int) -> NDArray[np.int64]:
        """Return where the windows of batch `step` begin, (sequences,): see minigpt.data.order."""
        return window_starts(step, seed=seed, n_tokens=len(self), block_size=block_size, sequences=sequences)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return tokens starts[i] ... starts[i] + length - 1 for each i, (n, length), across shard borders."""
        if len(self._shards) == 1:  # all rows in one copy, twice as fast as row by row
            return sliding_window_view(self._shards[0], length)[starts].astype(np.int64)
        return windows_of(self, starts, length)

    def weights(self, starts: NDArray[np.int64], length: int) -> NDArray[np.float32] | None:
        """Return None: all tokens count the same as targets. (Other splits return weights, (n, length).)"""
        return None

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens start ... stop - 1, cut to the split's ends as a slice is."""
        pieces = [self._shards[n][first:end] for n, first, end in spans(self._starts, start, stop)]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=self._dtype)


def spans(begins: list[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield which parts of a text hold tokens start ... stop - 1: the number of each, and from where to where in it.

    Part n is tokens begins[n] ... begins[n + 1] - 1.
    """
    stop = min(stop, begins[-1])
    for number in (
        range(bisect.bisect_right(begins, start) - 1, bisect.bisect_left(begins, stop)) if start < stop else ()
    ):
        yield number, max(0, start - begins[number]), stop - begins[number]


def windows_of(split: Any, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return windows as `TokenSplit.windows` does, row by row."""
    rows = [split.tokens(start, start + length) for start in starts.tolist()]
    return np.array(rows, dtype=np.int64).reshape(len(starts), length)


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:03d}.bin"


def _read_sidecar(folder: Path, name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what a split's sidecar says of its shards; a damaged one, or of another tokenizer, is refused."""
    path = folder / f"{name}.json"
    sidecar: dict[str, Any] = read_json(path)
    if not isinstance(sidecar, dict) or sidecar.get("format") != _FORMAT or sidecar.get("version") != 1:
        raise UserFault(f'{path} is not a sidecar of ours; wanted "format": "{_FORMAT}", "version": 1')
    if sidecar.get("tokenizer_hash") != tokenizer.hash:
        made = f"were made by a {sidecar.get('tokenizer')} tokenizer, SHA-256 {str(sidecar.get('tokenizer_hash'))[:12]}"
        raise UserFault(f"the tokens of {folder} {made}; the tokenizer here is {tokenizer.name}, {tokenizer.hash[:12]}")
    with contextlib.suppress(LookupError, TypeError):
        shards = sidecar["shards"]
        if (
            [shard["file"] for shard in shards] == [shard_name(name, number) for number in range(len(shards))]
            and sidecar["fingerprint"] == fingerprint([tokenizer.hash, *(shard["sha256"] for shard in shards)])
            and sidecar["dtype"] in HEADS
            and sum(shard["tokens"] for shard in shards) == sidecar["tokens"]
        ):
            return sidecar
    raise UserFault(f"{path} lacks the counts or the dtype of its shards, or names others: it is damaged")


def open_shard(path: Path, tokens: int, dtype: np.dtype[Any], header_bytes: int = HEADER_BYTES) -> NDArray[Any]:
    """Map the tokens of a shard into memory; its size and header must be those of so many tokens."""
    try:
        size, wanted = path.stat().st_size, header_bytes + dtype.itemsize * tokens
        if size != wanted:
            raise UserFault(f"{path} is {size:,} bytes; wanted {wanted:,}: a header and {tokens:,} {dtype} tokens")
        header, head = np.fromfile(path, dtype="<i4", count=3).tolist(), [*HEADS[dtype.name], tokens]
        if header_bytes and header != head:
            raise UserFault(f"{path} begins with the numbers {header}; a shard of {tokens:,} {dtype} with {head}")
        on_disk = dtype.newbyteorder("<")
        return np.asarray(np.memmap(path, on_disk, "r", header_bytes) if tokens else np.zeros(0, on_disk))
    except OSError as error:
        raise UserFault(f"{path} can't be read: {error.strerror or error}") from None


def refuse_strange_token(path: Path, shard: NDArray[Any], tokenizer: Tokenizer) -> None:
    """Refuse a shard that holds a token outside the vocabulary, and name the first one."""
    strange = np.flatnonzero(shard >= tokenizer.vocab_size)
    if strange.size:
        held = f"{path} holds token id {int(shard[strange[0]])} at position {int(strange[0]):,}"
        raise UserFault(f"{held}; the vocab_size of its {tokenizer.name} tokenizer is {tokenizer.vocab_size:,}")
