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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.order import deal, quotas, samples_of_step, starts_of
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json, sha256_of, write_json
from minigpt.seeds import MASK_64, fold

HEADS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # dtype -> magic and version
HEADER_BYTES = 1024
CHUNK_TOKENS = 1 << 20  # searched at one time
VERIFY_BYTES = 1 << 28  # splits up to this size are checked against their SHA-256 whenever they are opened

Shard = dict[str, Any]  # file, dtype, header_bytes, tokens, bytes, sha256
# Windows (n, block_size + 1 or less); how many last tokens of each are predicted; which of these count (None: all).
ScoredWindows = tuple[NDArray[np.int64], int, NDArray[np.bool_] | None]


def write_sidecar(folder: Path, name: str, tokenizer: Tokenizer, shards: list[Shard]) -> None:
    """Write the sidecar of a split, after its shards."""
    n_tokens = sum(shard["tokens"] for shard in shards)
    if n_tokens < 2:
        remedy = f"Use more text or a {'smaller' if name == 'train' else 'larger'} data.val_fraction"
        got = f"{n_tokens} token" if n_tokens else "no text"
        raise UserFault(f"the {name} split has {got}, and predicting one token takes at least 2. {remedy}")
    sidecar = {
        "dtype": shards[0]["dtype"],
        "header_bytes": shards[0]["header_bytes"],
        "tokens": n_tokens,
        "bytes": sum(shard["bytes"] for shard in shards),
        "shards": [{key: shard[key] for key in ("file", "tokens", "sha256")} for shard in shards],
        "tokenizer": tokenizer.name,
        "tokenizer_hash": tokenizer.hash,
        "fingerprint": fingerprint([tokenizer.hash, *(shard["sha256"] for shard in shards)]),
    }
    write_json(folder / f"{name}.json", sidecar)


def fingerprint(parts: Sequence[Any]) -> str:
    """Return one SHA-256 (hex) for several texts or facts in order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(eq=False, repr=False)
class TokenSplit:
    """The tokens of a split, a mixture or a text, in arrays one behind another. `len()` counts them.

    Attributes:
        name: train | val; of a text that is scored, text.
        tokenizer: the one that made the tokens.
        arrays: the shards, memory-mapped, or arrays in memory.
        bytes: bytes of text behind the tokens (end-of-text tokens have none).
        fingerprint: SHA-256 (hex) of tokenizer and tokens, whatever the shares of a mixture are.
        words, lines: of a text that is scored: runs of bytes between ASCII white space, and newlines.
        parts: the sources of a mixture by their names, in the order of the arrays; else the split itself.
        shares: each source's share of the training windows.
        answers: None; of conversations, which tokens are learned (minigpt/data/chat/packing.py).
    """

    name: str
    tokenizer: Tokenizer
    arrays: Sequence[NDArray[Any]]
    bytes: int
    fingerprint: str
    words: int = 0
    lines: int = 0
    parts: dict[str, "TokenSplit"] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)

    answers = None

    def __post_init__(self) -> None:
        self.parts = self.parts or {self.name: self}
        self.shares = self.shares or {self.name: 1.0}
        self.quotas = quotas(tuple(self.shares.values()))
        self._begins = np.cumsum([0, *map(len, self.arrays)]).tolist()  # of each array, and the end

    def __len__(self) -> int:
        return int(self._begins[-1])

    def check_context(self, block_size: int) -> None:
        """Refuse a training source that is shorter than a window. (Validation text may be shorter.)"""
        for name, part in self.parts.items() if self.name == "train" else ():
            if (n_tokens := len(part)) <= block_size:
                split = self.name if part is self else f"{name}: {self.name}"
                remedy = f"Use model.block_size <= {n_tokens - 1} or more text" if n_tokens > 1 else "Use more text"
                wanted = f"model.block_size={block_size} needs at least {block_size + 1:,}"
                raise UserFault(f"{split} split has {n_tokens:,} tokens; {wanted}. {remedy}")

    def window_starts(self, step: int, *, seed: int, block_size: int, sequences: int) -> NDArray[np.int64]:
        """Return where the windows of batch `step` begin, (sequences,), each within one source: see minigpt.data.order.

        Each source has an order of its own, which follows from the seed and its tokens, not from its name or place.
        """
        self.check_context(block_size)
        sources, numbers = deal(samples_of_step(step, sequences), self.quotas)
        parts, is_mixture = self.parts.values(), len(self.parts) > 1
        seeds = [fold(seed, int(part.fingerprint[:15], 16)) if is_mixture else seed & MASK_64 for part in parts]
        n_tokens, seed_of = np.array([*map(len, parts)]), np.array(seeds, np.uint64)[sources]
        starts = starts_of(numbers, seed=seed_of, n_tokens=n_tokens[sources], block_size=block_size)
        return (n_tokens.cumsum() - n_tokens)[sources] + starts

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return tokens starts[i] ... starts[i] + length - 1 for each i, (n, length), across the borders of arrays."""
        if len(self.arrays) == 1:  # all rows in one copy, twice as fast as row by row
            return np.lib.stride_tricks.sliding_window_view(self.arrays[0], length)[starts].astype(np.int64)
        rows = [self.tokens(start, start + length) for start in starts.tolist()]
        return np.array(rows, dtype=np.int64).reshape(len(starts), length)

    def weights(self, starts: NDArray[np.int64], length: int) -> NDArray[np.float32] | None:
        """Return None: all tokens count the same as targets. (Conversations have weights, (n, length).)"""
        return None

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens start ... stop - 1, cut to the split's ends as a slice is."""
        covered = slice(bisect.bisect_right(self._begins, start) - 1, bisect.bisect_left(self._begins, stop))
        arrays = zip(self._begins[covered], self.arrays[covered], strict=False)
        parts = [array[max(0, start - left) : stop - left] for left, array in arrays]
        return np.concatenate([self.arrays[0][:0], *parts])

    def scored_windows(self, block_size: int, batch: int, stride: int | None = None) -> Iterator[ScoredWindows]:
        """Yield windows that predict each token once: up to `batch` of block_size + 1 tokens, then the shorter tail.

        Window w predicts tokens w * block_size + 1 .. (w + 1) * block_size. With a stride below block_size windows
        overlap: one begins every `stride` tokens, and its first block_size - stride tokens are context only.

        All predicted tokens count, so the last of the three is None.
        """
        stride = stride or block_size
        shared, predicted = block_size - stride, len(self) - 1
        whole = max(0, (predicted - shared) // stride)
        alone = min(whole, 1) if shared else 0  # the first window has nothing before it: all of it is predicted
        batches = [(0, alone, block_size)] * alone
        batches += [(first, min(first + batch, whole), stride) for first in range(alone, whole, batch)]
        for first, last, new in batches:
            yield self.windows(np.arange(first, last, dtype=np.int64) * stride, block_size + 1), new, None
        start = whole * stride  # the tail's window reads the tokens shared with the window before it, too
        done = start + shared if whole else 0
        if predicted > done:
            yield self.windows(np.array([start], dtype=np.int64), predicted - start + 1), predicted - done, None

    def unpredicted_places(self, document_end: int | None = None) -> NDArray[np.int64]:
        """Return the places of the tokens that have no context: the first, and every token after a `document_end`."""
        places = [np.zeros(1, dtype=np.int64)]
        for start in range(0, len(self) - 1 if document_end is not None else 0, CHUNK_TOKENS):
            piece = self.tokens(start, min(start + CHUNK_TOKENS, len(self) - 1))
            places.append(np.flatnonzero(piece == document_end) + start + 1)
        return np.concatenate(places)

    def predicted(self, block_size: int, document_end: int | None = None) -> tuple[int, int]:
        """Return how many tokens the scored windows predict, and the bytes of text in them."""
        places = self.unpredicted_places(document_end)
        return len(self) - len(places), self.bytes - self.tokenizer.count_bytes(self.windows(places, 1))

    def passes(self, n_tokens: int, block_size: int) -> float:
        """Return how many times so many tokens of training pass over the split."""
        return n_tokens / len(self)

    def describe(self, block_size: int) -> list[str]:
        """Return []: all tokens are learned. (A split of conversations describes which of them are.)"""
        return []


def open_split(folder: Path, name: str, tokenizer: Tokenizer) -> TokenSplit:
    """Open a split's shards and check all of them that can be checked quickly."""
    sidecar = _read_sidecar(folder, name, tokenizer)
    arrays, dtype = [], np.dtype(sidecar["dtype"])
    is_small = dtype.itemsize * sidecar["tokens"] <= VERIFY_BYTES
    for entry in sidecar["shards"]:
        path = folder / entry["file"]
        arrays.append(open_shard(path, entry["tokens"], dtype, sidecar["header_bytes"]))
        if is_small and sha256_of(path) != entry["sha256"]:
            raise UserFault(f"{path} was changed since it was made: its SHA-256 is not that of {name}.json")
    return TokenSplit(name, tokenizer, arrays, sidecar["bytes"], sidecar["fingerprint"])


def mix_splits(parts: dict[str, TokenSplit], shares: Mapping[str, float]) -> TokenSplit:
    """Return one split of several sources, one source behind the other; the shares are relative to their sum."""
    first, total = next(iter(parts.values())), sum(shares[name] for name in parts)
    relative = {name: shares[name] / total for name in parts}
    arrays = [array for part in parts.values() for array in part.arrays]
    n_bytes = sum(part.bytes for part in parts.values())
    whole = fingerprint([part.fingerprint for part in parts.values()])
    return TokenSplit(first.name, first.tokenizer, arrays, n_bytes, whole, parts=parts, shares=relative)


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:03d}.bin"


def _read_sidecar(folder: Path, name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a split's sidecar; a damaged one, or one of another tokenizer, is refused."""
    path = folder / f"{name}.json"
    sidecar: dict[str, Any] = read_json(path)
    with contextlib.suppress(LookupError, TypeError):
        hashes = [shard["sha256"] for shard in sidecar["shards"]]
        if sidecar["fingerprint"] == fingerprint([tokenizer.hash, *hashes]):
            return sidecar
    raise UserFault(f"{path} does not fit the shards and the tokenizer beside it: one of these files is damaged")


def open_shard(path: Path, tokens: int, dtype: np.dtype[Any], header_bytes: int = HEADER_BYTES) -> NDArray[Any]:
    """Map the tokens of a shard into memory; its size must be that of so many tokens."""
    try:
        size, wanted = path.stat().st_size, header_bytes + dtype.itemsize * tokens
        if size != wanted:
            raise UserFault(f"{path} is {size:,} bytes; wanted {wanted:,}: a header and {tokens:,} {dtype} tokens")
        on_disk = dtype.newbyteorder("<")
        return np.asarray(np.memmap(path, on_disk, "r", header_bytes) if tokens else np.zeros(0, on_disk))
    except OSError as error:
        raise UserFault(f"{path} can't be read: {error.strerror or error}") from None
