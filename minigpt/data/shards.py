"""Tokens on disk: llm.c's shards and a JSON sidecar, written so that a name never shows half a file.

A shard is 256 int32 (magic, version, count, zeros) and then `count` tokens, all little-endian. Magic and version say
how wide a token is: 20240520 and 1 uint16, 20240801 and 7 uint32 (llm.c's shards for Llama 3).

A split is `NAME-000.bin`, `NAME-001.bin`, ... with `NAME.json` beside them, written last: it holds the counts, the
bytes of text behind the tokens, the tokenizer's hash, each file's SHA-256, and their fingerprint.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from minigpt.config.convert import shown
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.rundir.files import replaced, sha256_of, write_file

HEADS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # dtype -> magic and version
HEADER_BYTES = 1024
SHARD_TOKENS = 100_000_000
VERIFY_BYTES = 1 << 28  # splits up to this size are checked against their SHA-256 whenever they are opened

_FORMAT = "minigpt-shards"


class DamagedShards(UserFault):
    """Prepared tokens that are not what was written."""

    def __init__(self, what: str):
        self.what = what
        super().__init__(f"{what}. minigpt prepare with the same keys makes it again")


class SplitWriter:
    """Writes a split: its shards as tokens come, its sidecar at the end.

    Used in a `with` block: an error in it leaves no half of a file.

    Args:
        folder: an existing folder.
        name: of the split: train | val.
        tokenizer: whose tokens they are.
        shard_tokens: tokens per shard at most.

    Raises:
        OSError: a file can't be written.
    """

    def __init__(self, folder: Path, name: str, *, tokenizer: Tokenizer, shard_tokens: int = SHARD_TOKENS):
        self.folder, self.name, self.tokenizer, self.shard_tokens = folder, name, tokenizer, shard_tokens
        self.tokens = 0  # written so far
        self.bytes = 0  # of text that they stand for
        self._dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
        self._max_token = 0
        self._shards: list[dict[str, Any]] = []
        self._open = contextlib.ExitStack()  # the shard being written
        self._begin_shard()

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*(error if error[0] else (RuntimeError, RuntimeError("not finished"), None)))

    def write(self, tokens: NDArray[Any], n_bytes: int = 0) -> None:
        """Append tokens, and the number of bytes of text behind them."""
        self.tokens += len(tokens)
        self.bytes += n_bytes
        self._max_token = max(self._max_token, int(tokens.max(initial=0)))
        while len(tokens):
            if self._count == self.shard_tokens:
                self._finish_shard()
                self._begin_shard()
            part = tokens[: self.shard_tokens - self._count]
            self._file.write(part.astype(self._dtype).tobytes())
            self._count += len(part)
            tokens = tokens[len(part) :]

    def finish(self) -> dict[str, Any]:
        """Write the last shard and the sidecar, and return the sidecar."""
        self._finish_shard()
        sidecar = {
            "format": _FORMAT,
            "version": 1,
            "split": self.name,
            "dtype": self._dtype.name,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "max_token": self._max_token,
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer": self.tokenizer.name,
            "tokenizer_hash": self.tokenizer.hash,
            "shard_tokens": self.shard_tokens,
            "shards": self._shards,
            "fingerprint": fingerprint([self.tokenizer.hash, *(shard["sha256"] for shard in self._shards)]),
        }
        write_file(self.folder / f"{self.name}.json", json.dumps(sidecar, indent=1) + "\n")
        return sidecar

    def _begin_shard(self) -> None:
        self._temporary = self._open.enter_context(replaced(_shard_path(self.folder, self.name, len(self._shards))))
        self._file = self._open.enter_context(open(self._temporary, "xb"))  # noqa: SIM115  the stack closes it
        self._file.write(bytes(HEADER_BYTES))
        self._count = 0

    def _finish_shard(self) -> None:
        """Put the header in front and the file in its place."""
        header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
        header[:3] = *HEADS[self._dtype.name], self._count
        self._file.seek(0)
        self._file.write(header.tobytes())
        self._file.close()
        entry = {
            "file": _shard_path(self.folder, self.name, len(self._shards)).name,
            "tokens": self._count,
            "size": HEADER_BYTES + self._dtype.itemsize * self._count,
            "sha256": sha256_of(self._temporary),
        }
        self._open.close()
        self._shards.append(entry)


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
            raise DamagedShards(f"the shards of {self.folder / name}.json hold {sizes} tokens, not {self._length:,}")
        if self._dtype.itemsize * self._length <= VERIFY_BYTES:
            self.verify(sidecar["shards"])
        if sidecar["max_token"] >= tokenizer.vocab_size:
            self._name_strange_token()

    def __len__(self) -> int:
        return self._length

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return tokens starts[i] ... starts[i] + length - 1 for each i, across shard borders.

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
        if len(self._shards) == 1:  # all rows in one copy, twice as fast as row by row
            return sliding_window_view(self._shards[0], length)[starts].astype(np.int64)
        rows = [self.tokens(start, start + length) for start in starts.tolist()]
        return np.array(rows, dtype=np.int64).reshape(len(starts), length)

    def weights(self, starts: NDArray[np.int64], length: int) -> NDArray[np.float32] | None:
        """Return the weights (n, length) of these tokens as targets; None, for all count the same."""
        return None

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens start ... stop - 1, cut to the split's ends as a slice is."""
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
            if sha256_of(path) != entry["sha256"]:
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


def _shard_path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:03d}.bin"


def _read_sidecar(path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    try:
        sidecar = json.loads(path.read_bytes())
    except OSError as error:
        raise DamagedShards(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DamagedShards(f"{path} is not JSON: it is damaged") from None
    if not isinstance(sidecar, dict) or sidecar.get("format") != _FORMAT or sidecar.get("version") != 1:
        raise DamagedShards(f'{path} is not a sidecar of ours; wanted "format": "{_FORMAT}", "version": 1')
    if sidecar.get("tokenizer_hash") != tokenizer.hash:
        theirs = [shown(str(sidecar.get(key)))[1:-1] for key in ("tokenizer", "tokenizer_hash")]
        raise DamagedShards(
            f"the tokens of {path.parent} were made by a {theirs[0]} tokenizer with SHA-256 {theirs[1][:12]}..., the "
            f"tokenizer here is {tokenizer.name} with {tokenizer.hash[:12]}..."
        )
    counts = [sidecar.get(key) for key in ("tokens", "bytes", "max_token", "shard_tokens")]
    words, shards = [sidecar.get("fingerprint")], sidecar.get("shards")
    whole = isinstance(shards, list) and all(isinstance(entry, dict) for entry in shards)
    for number, entry in enumerate(shards or () if whole else ()):
        counts.append(entry.get("tokens"))
        words.append(entry.get("sha256"))
        whole = whole and entry.get("file") == _shard_path(path.parent, path.stem, number).name  # each once
    whole = whole and bool(shards) and sidecar["shard_tokens"] != 0 and sidecar.get("dtype") in HEADS
    whole = whole and all(type(count) is int and 0 <= count < 2**62 for count in counts)
    if not whole or not all(isinstance(word, str) for word in words):
        raise DamagedShards(f"{path} lacks the counts or the dtype of its shards: it is damaged")
    return sidecar


def _open_shard(path: Path, entry: dict[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size < HEADER_BYTES or size % dtype.itemsize:
            raise DamagedShards(
                f"{path} is {size:,} bytes; wanted a header of {HEADER_BYTES} and {dtype.itemsize} per token ({dtype})"
            )
        magic, version, count = np.fromfile(path, dtype="<i4", count=3).tolist()
        on_disk = dtype.newbyteorder("<")
        tokens = np.memmap(path, on_disk, "r", HEADER_BYTES) if size > HEADER_BYTES else np.zeros(0, on_disk)
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
