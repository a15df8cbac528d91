"""Tokens on disk: llm.c's shards and a JSON sidecar, written so that a name never shows half a file.

A shard is 256 int32 (magic, version, count, zeros) and then `count` tokens, all little-endian. Magic and version say
how wide a token is: 20240520 and 1 uint16, 20240801 and 7 uint32 (llm.c's shards for Llama 3).

A split is `NAME-000.bin`, `NAME-001.bin`, ... with `NAME.json` beside them, written last: it holds the counts, the
bytes of text behind the tokens, the tokenizer's hash, each file's SHA-256, and their fingerprint.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from minigpt.config.convert import shown
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.rundir.files import flush, write_file

HEADS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # dtype -> magic and version
HEADER_BYTES = 1024
SHARD_TOKENS = 100_000_000
VERIFY_BYTES = 1 << 28  # splits up to this size are checked against their SHA-256 whenever they are opened

_FORMAT = "minigpt-shards"


class DamagedShards(UserFault):
    """Prepared tokens that are not what was written."""

    def __init__(self, what: str):
        self.what = what
        super().__init__(f"{what}. scripts/prepare_data.py with the same keys makes it again")


def write_split(
    folder: Path,
    name: str,
    parts: Iterable[NDArray[Any]],
    *,
    text_bytes: int,
    tokenizer: Tokenizer,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, Any]:
    """Write the shards of a split and its sidecar.

    Args:
        folder: an existing folder.
        name: of the split: train | val.
        parts: arrays of tokens in order.
        text_bytes: bytes of text that they stand for.
        tokenizer: whose tokens they are.
        shard_tokens: tokens per shard at most.

    Returns:
        The sidecar.

    Raises:
        OSError: a file can't be written.
    """
    total, max_token, shards = 0, 0, []
    shard = _Shard(folder, name, 0, tokenizer.dtype)
    try:
        for tokens in parts:
            total += len(tokens)
            max_token = max(max_token, int(tokens.max(initial=0)))
            while len(tokens):
                if shard.count == shard_tokens:
                    shards.append(shard.finish())
                    shard = _Shard(folder, name, len(shards), tokenizer.dtype)
                room = shard_tokens - shard.count
                shard.write(tokens[:room])
                tokens = tokens[room:]
        shards.append(shard.finish())
    finally:
        shard.discard()
    sidecar = {
        "format": _FORMAT,
        "version": 1,
        "split": name,
        "dtype": np.dtype(tokenizer.dtype).name,
        "tokens": total,
        "bytes": text_bytes,
        "max_token": max_token,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.name,
        "tokenizer_hash": tokenizer.hash,
        "shard_tokens": shard_tokens,
        "shards": shards,
        "fingerprint": fingerprint([tokenizer.hash, *(shard["sha256"] for shard in shards)]),
    }
    write_file(folder / f"{name}.json", json.dumps(sidecar, indent=1) + "\n")
    return sidecar


def fingerprint(parts: list[str]) -> str:
    """One SHA-256 (hex) for several texts in order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class TokenSplit:
    """The tokens of one split, memory-mapped. `len()` counts them.

    Attributes:
        name: train | val.
        folder: where its files are.
        bytes: bytes of text behind the tokens (end-of-text tokens stand for none).
        fingerprint: SHA-256 (hex) of tokenizer and tokens.
    """

    def __init__(self, folder: str | Path, name: str, *, tokenizer: Tokenizer):
        """Open a split and check all of it that can be checked quickly: see `DamagedShards`.

        Raises:
            DamagedShards: a file is missing, cut, changed, not a shard, or made by another tokenizer.
        """
        self.folder, self.name, self._tokenizer = Path(folder), name, tokenizer
        sidecar = _read_sidecar(self.folder / f"{name}.json", tokenizer)
        self.bytes: int = sidecar["bytes"]
        self.fingerprint: str = sidecar["fingerprint"]
        self._length: int = sidecar["tokens"]
        self._shard_tokens: int = sidecar["shard_tokens"]
        self._dtype = np.dtype(sidecar["dtype"])
        self._shards = [_open_shard(self.folder / entry["file"], entry, self._dtype) for entry in sidecar["shards"]]
        sizes = [len(shard) for shard in self._shards]
        if sum(sizes) != self._length or any(size != self._shard_tokens for size in sizes[:-1]):
            raise DamagedShards(
                f"the shards of {self.folder / name}.json hold {sizes} tokens, not {self._length:,} in all"
            )
        if self._dtype.itemsize * self._length <= VERIFY_BYTES:
            self.verify(sidecar["shards"])
        if sidecar["max_token"] >= tokenizer.vocab_size:
            self._name_strange_token()

    def __len__(self) -> int:
        return self._length

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Tokens starts[i] ... starts[i] + length - 1 for each i, across shard borders.

        Args:
            starts: (n,) positions of the first tokens.
            length: tokens per window.

        Returns:
            (n, length).

        Raises:
            IndexError: a window reaches outside the split.
        """
        if len(starts) and not (starts.min() >= 0 and starts.max() + length <= self._length):
            raise IndexError(f"window outside the {self.name} split of {self._length:,} tokens")
        if len(self._shards) == 1:  # whole rows are copied, 4 times as fast as token by token
            return sliding_window_view(self._shards[0], length)[starts].astype(np.int64)
        places = starts[:, None] + np.arange(length)
        out = np.empty(places.shape, dtype=np.int64)
        numbers, places = np.divmod(places, self._shard_tokens)
        for number in np.unique(numbers):
            here = numbers == number
            out[here] = self._shards[number][places[here]]
        return out

    def weights(self, starts: NDArray[np.int64], length: int) -> NDArray[np.float32] | None:
        """None: all tokens count the same."""
        return None

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens start ... stop - 1, cut to the split's ends as a slice is."""
        start, stop, _ = slice(start, stop).indices(self._length)
        size = self._shard_tokens
        pieces = [
            self._shards[number][max(0, start - number * size) : stop - number * size]
            for number in range(start // size, -(-stop // size))
        ]
        return np.concatenate(pieces) if stop > start else np.zeros(0, dtype=self._dtype)

    def verify(self, shards: list[dict[str, Any]]) -> None:
        """Compare every shard with the SHA-256 that its sidecar names.

        Raises:
            DamagedShards: a shard was changed.
        """
        for entry in shards:
            path = self.folder / entry["file"]
            if _sha256(path) != entry["sha256"]:
                self._name_strange_token()
                raise DamagedShards(
                    f"{path} was changed since it was made: its SHA-256 is not that of {self.name}.json"
                )

    def _name_strange_token(self) -> None:
        """Name the first token outside the vocabulary, if there is one."""
        vocab_size = self._tokenizer.vocab_size
        for number, shard in enumerate(self._shards):
            for start in range(0, len(shard), 1 << 24):
                strange = np.flatnonzero(shard[start : start + (1 << 24)] >= vocab_size)
                if strange.size:
                    at = start + int(strange[0])
                    raise DamagedShards(
                        f"{_shard_path(self.folder, self.name, number)} holds token id {int(shard[at])} at position "
                        f"{at:,}; the vocab_size of its {self._tokenizer.name} tokenizer is {vocab_size:,}"
                    )

    def __reduce__(self) -> tuple[Any, ...]:
        # Loader processes that are spawned map the files themselves; pickling the arrays would copy the tokens.
        return _reopen, (self.folder, self.name, self._tokenizer)


def _reopen(folder: Path, name: str, tokenizer: Tokenizer) -> TokenSplit:
    return TokenSplit(folder, name, tokenizer=tokenizer)


def _shard_path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:03d}.bin"


class _Shard:
    """A shard being written under a temporary name."""

    def __init__(self, folder: Path, name: str, number: int, dtype: type):
        self.dtype = np.dtype(dtype)
        self.path = _shard_path(folder, name, number)
        self.temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        self.count = 0
        self.finished = False
        self.file = open(self.temporary, "wb")  # noqa: SIM115  it stays open until finish or discard
        self.file.write(bytes(HEADER_BYTES))

    def write(self, tokens: NDArray[Any]) -> None:
        self.file.write(tokens.astype(self.dtype.newbyteorder("<")).tobytes())
        self.count += len(tokens)

    def finish(self) -> dict[str, Any]:
        """Put the header in front and the file in its place; its entry for the sidecar."""
        header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
        header[:3] = *HEADS[self.dtype.name], self.count
        self.file.seek(0)
        self.file.write(header.tobytes())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        entry = {
            "file": self.path.name,
            "tokens": self.count,
            "size": HEADER_BYTES + self.dtype.itemsize * self.count,
            "sha256": _sha256(self.temporary),
        }
        os.replace(self.temporary, self.path)
        self.finished = True
        flush(self.path.parent)
        return entry

    def discard(self) -> None:
        """Leave nothing behind of a shard that was not finished."""
        if not self.finished:
            with contextlib.suppress(OSError):  # closing writes what is buffered, and the disk may be full
                self.file.close()
            self.temporary.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_sidecar(path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    try:
        sidecar = json.loads(path.read_bytes())
    except OSError as error:
        raise DamagedShards(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DamagedShards(f"{path} is no JSON: it is damaged") from None
    if not isinstance(sidecar, dict) or sidecar.get("format") != _FORMAT or sidecar.get("version") != 1:
        raise DamagedShards(f'{path} is no sidecar of ours; wanted "format": "{_FORMAT}", "version": 1')
    if sidecar.get("tokenizer_hash") != tokenizer.hash:
        theirs = [shown(str(sidecar.get(key)))[1:-1] for key in ("tokenizer", "tokenizer_hash")]
        raise DamagedShards(
            f"the tokens of {path.parent} were made by a {theirs[0]} tokenizer with SHA-256 {theirs[1][:12]}..., the "
            f"tokenizer here is {tokenizer.name} with {tokenizer.hash[:12]}..."
        )
    numbers = [sidecar.get(key) for key in ("tokens", "bytes", "max_token", "shard_tokens")]
    counted = all(_is_count(number) for number in numbers) and sidecar["shard_tokens"] > 0
    name = path.name.removesuffix(".json")
    if not (
        counted
        and sidecar.get("dtype") in HEADS
        and isinstance(sidecar.get("fingerprint"), str)
        and _is_shard_list(sidecar.get("shards"), name)
    ):
        raise DamagedShards(f"{path} lacks the counts or the dtype of its shards: it is damaged")
    return sidecar


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**62


def _is_shard_list(shards: Any, name: str) -> bool:
    return (
        isinstance(shards, list)
        and len(shards) > 0
        and all(
            isinstance(entry, dict)
            and _is_count(entry.get("tokens"))
            and isinstance(entry.get("sha256"), str)
            and entry.get("file") == f"{name}-{number:03d}.bin"  # beside the sidecar, each once
            for number, entry in enumerate(shards)
        )
    )


def _open_shard(path: Path, entry: dict[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size == 0:
            raise DamagedShards(f"{path} is empty (0 bytes)")
        if size % dtype.itemsize:
            raise DamagedShards(f"{path} is {size:,} bytes, not a multiple of {dtype.itemsize} ({dtype})")
        if size < HEADER_BYTES:
            raise DamagedShards(f"{path} is {size:,} bytes, shorter than the {HEADER_BYTES} of its header")
        magic, version, count = np.fromfile(path, dtype="<i4", count=3).tolist()
        on_disk = dtype.newbyteorder("<")
        tokens = (
            np.memmap(path, dtype=on_disk, mode="r", offset=HEADER_BYTES)
            if size > HEADER_BYTES
            else np.zeros(0, on_disk)
        )
    except OSError as error:
        raise DamagedShards(f"{path} can't be read: {error.strerror or error}") from None
    if (magic, version) != HEADS[dtype.name]:
        wanted = "{} and {}".format(*HEADS[dtype.name])
        raise DamagedShards(
            f"{path} begins with the numbers {magic} and {version}; a shard of {dtype} tokens begins with {wanted}"
        )
    if count != len(tokens) or count != entry["tokens"]:
        raise DamagedShards(
            f"{path} has {len(tokens):,} tokens; its header says {count:,} and its sidecar {entry['tokens']:,}"
        )
    return np.asarray(tokens)
