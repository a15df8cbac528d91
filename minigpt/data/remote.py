"""Tokens that stay where they are, at a URL: pieces of them are fetched ahead of the training into a bounded cache.

`data.shards=URL` names a folder that `minigpt prepare` has made. Its JSON files, the tokenizer and the validation split
are copied whole; a piece of the training split is a range of bytes of its shards (see blocks.py). A piece gets its name
when all of it is there.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.blocks import Blocks
from minigpt.data.order import check_length
from minigpt.data.shards import HEADER_BYTES, read_sidecar
from minigpt.data.sources.download import copy_file, file_system
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import lock, replaced
from minigpt.redact import redact

TRIES = 5
FIRST_PAUSE_SECONDS = 1.0  # before the second try; twice as long before each further one
WORKERS = 4
STALE_SECONDS = 3600.0  # an unfinished piece of this age was left by a process that was killed


def pieces_of(folder: Path) -> Path:
    """Return the folder for the pieces of the split whose sidecar is in `folder`."""
    return folder.with_name(f"{folder.name}-pieces")


class RemoteFolder:
    """A prepared folder at a URL.

    Args:
        url: of any file system that fsspec knows; it is never shown with its credentials.

    Raises:
        UserFault: a package for this file system is missing.
    """

    def __init__(self, url: str):
        self.shown = redact(url)
        try:
            self.system, self.root = file_system(url)
        except ImportError as error:
            raise UserFault(
                f"data.shards={self.shown} needs a package that is not here ({redact(str(error))}). Type: "
                f"{sys.executable} -m pip install fsspec aiohttp   and for S3 s3fs, for Google's storage gcsfs"
            ) from None

    def copy(self, name: str, folder: Path) -> None:
        """Copy a file whole.

        Raises:
            StorageFailure: it can't be fetched.
            OSError: it can't be written.
        """
        self._tried(name, lambda path: copy_file(self.system, path, folder / name, None, tries=1))

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes start ... stop - 1 of a file.

        Raises:
            StorageFailure: they can't be fetched.
        """

        def once(path: str) -> bytes:
            try:
                content: bytes = self.system.cat_file(path, start=start, end=stop)
            except Exception as error:  # of aiohttp, botocore, fsspec ...: not all of them are an OSError
                raise ConnectionError(f"{type(error).__name__}: {error}") from None
            if len(content) != stop - start:
                why = "the server ignores ranges" if len(content) > stop - start else "the answer was cut"
                raise ConnectionError(f"{len(content):,} bytes came and {stop - start:,} were asked for: {why}")
            return content

        found: bytes = self._tried(name, once)
        return found

    def _tried(self, name: str, once: Callable[[str], Any]) -> Any:
        """Return what `once` returns for a file's path, trying up to TRIES times."""
        place, mark, signature = self.root.partition("?")
        path = f"{place.rstrip('/')}/{name}{mark}{signature}"
        for attempt in range(TRIES):
            try:
                return once(path)
            except ConnectionError as error:
                reason = redact(" ".join(str(error).split()))[:300]
            if attempt < TRIES - 1:
                time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
        raise StorageFailure(
            f"{name} of data.shards={self.shown} can't be read, after {TRIES} tries: {reason}. A run that has begun "
            "goes on from its last checkpoint with the same command"
        )


class PieceCache:
    """Files that are fetched in the background, as many as there is room for.

    Args:
        folder: for them.
        fetch: (number, file) -> writes that file, whole or not at all.
        limit_bytes: of all files; those that are wanted stay, whatever they take.
    """

    def __init__(self, folder: Path, fetch: Callable[[int, Path], None], limit_bytes: float):
        self.folder, self.fetch, self.limit_bytes = folder, fetch, limit_bytes
        self._changed = threading.Condition()
        self._wanted: list[int] = []
        self._busy: set[int] = set()
        self._failed: dict[int, Exception] = {}
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]

    def want(self, numbers: list[int]) -> None:
        """Fetch these, the first ones first; others may be removed."""
        with self._changed:
            if numbers != self._wanted:
                self._wanted = numbers
                self._changed.notify_all()

    def path(self, number: int) -> Path:
        """Return a file's path when it is there.

        Raises:
            StorageFailure: it can't be fetched.
        """
        path = self.folder / str(number)
        with self._changed:
            self._failed.pop(number, None)
            while not path.exists():
                if number in self._failed:
                    raise self._failed.pop(number)
                if self._wanted[:1] != [number]:
                    self._wanted = [number, *(each for each in self._wanted if each != number)]
                for thread in self._threads:
                    if thread.ident is None:
                        thread.start()
                self._changed.notify_all()
                self._changed.wait(timeout=1.0)
        return path

    def _work(self) -> None:
        while True:
            with self._changed:
                while (number := self._next()) is None:
                    self._changed.wait()
                self._busy.add(number)
            try:
                self._make_room()
                self._fetch_once(number)
                error = None
            except Exception as caught:
                error = caught
            with self._changed:
                self._busy.discard(number)
                if error is not None:
                    self._failed[number] = error
                self._changed.notify_all()

    def _next(self) -> int | None:
        for number in self._wanted:
            if number not in self._busy and number not in self._failed and not (self.folder / str(number)).exists():
                return number
        return None

    def _fetch_once(self, number: int) -> None:
        """Fetch a file, unless another rank of this machine has fetched it."""
        with open(self.folder / f".lock-{number % 64}", "wb") as file:
            lock(file)
            if not (self.folder / str(number)).exists():
                try:
                    self.fetch(number, self.folder / str(number))
                except OSError as error:
                    raise StorageFailure(f"can't write {self.folder}: {error.strerror or error}. Make room") from None

    def _make_room(self) -> None:
        """Remove files that are not wanted, the oldest first, until the limit has room for those being fetched."""
        with self._changed:
            wanted, coming = {str(number) for number in self._wanted}, len(self._busy)
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another rank removed it
                status = path.stat()
                if path.name.endswith(".tmp") and time.time() - status.st_mtime > STALE_SECONDS:
                    path.unlink()
                elif path.name.isdecimal():
                    found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found) + coming * max((size for _, size, _ in found), default=0)
        for _, size, path in sorted(found):
            if total > self.limit_bytes and path.name not in wanted:
                path.unlink(missing_ok=True)
                total -= size


class RemoteSplit:
    """The training split of a prepared folder at a URL. `len()` counts its tokens.

    Args:
        remote: the folder; None: nothing can be fetched.
        folder: the folder on this machine that holds the split's sidecar; the pieces are in another one beside it.
        name: of the split.
        tokenizer: whose tokens they are.
        limit_bytes: of the pieces.

    Attributes:
        name, bytes, fingerprint: as of a `TokenSplit`.

    Raises:
        UserFault: the sidecar is damaged, or of another tokenizer.
    """

    def __init__(
        self, remote: RemoteFolder | None, folder: Path, name: str, *, tokenizer: Tokenizer, limit_bytes: float = 0.0
    ):
        sidecar = read_sidecar(folder, name, tokenizer)
        self.name, self.remote, self.limit_bytes = name, remote, limit_bytes
        self.bytes: int = sidecar["bytes"]
        self.fingerprint: str = sidecar["fingerprint"]
        self._length: int = sidecar["tokens"]
        self._dtype = np.dtype(sidecar["dtype"]).newbyteorder("<")
        self._header = sidecar.get("header_bytes", HEADER_BYTES)
        self._vocab_size = tokenizer.vocab_size
        self._files = [entry["file"] for entry in sidecar["shards"]]
        self._begins = np.cumsum([0, *(entry["tokens"] for entry in sidecar["shards"])])
        self._pieces = pieces_of(folder)
        self._cache: PieceCache | None = None  # in a folder that is named after the tokens of a piece

    def __len__(self) -> int:
        return self._length

    def refuse_small_cache(self, *, block_size: int, sequences: int) -> None:
        """Refuse a cache that does not hold two blocks, the one that is trained on and the next one.

        Raises:
            UserFault: data.cache_gb is too small for that.
        """
        blocks = Blocks(self._length, block_size, sequences, 0)
        pieces = 2 * blocks.pieces_of_block + WORKERS + 1  # one of the block before, and what is being fetched
        need = min(pieces * blocks.piece_tokens, self._length) * self._dtype.itemsize
        if need > self.limit_bytes:
            raise UserFault(
                f"data.cache_gb={self.limit_bytes / 1e9:g} is too small: with {sequences:,} windows a step, of "
                f"{block_size:,} tokens, two blocks of {blocks.pieces_of_block:,} pieces are needed. Use "
                f"data.cache_gb={need / 1e9:.2g} or more, or a smaller batch_tokens"
            )

    def window_starts(self, step: int, *, seed: int, block_size: int, sequences: int) -> NDArray[np.int64]:
        """Return where the windows of batch `step` begin (see blocks.py), and have their block and the next fetched."""
        check_length(self.name, self._length, block_size)
        blocks = Blocks(self._length, block_size, sequences, seed)
        self._cache_of(blocks.piece_tokens).want(blocks.needed(step))
        return blocks.starts(np.uint64(step * sequences) + np.arange(sequences, dtype=np.uint64))

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return windows as `TokenSplit.windows` does. It waits for pieces that are not there yet.

        Raises:
            StorageFailure: a piece can't be fetched.
        """
        if len(starts) and not (starts.min() >= 0 and starts.max() + length <= self._length):
            raise IndexError(f"window outside the {self.name} split of {self._length:,} tokens")
        rows = [self.tokens(start, start + length) for start in starts.tolist()]
        return np.array(rows, dtype=np.int64).reshape(len(starts), length)

    def weights(self, starts: NDArray[np.int64], length: int) -> None:
        """Return None: all tokens count the same as targets."""

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens as `TokenSplit.tokens` does."""
        start, stop, _ = slice(start, stop).indices(self._length)
        cache = self._cache or self._cache_of(Blocks(self._length, 1, 1, 0).piece_tokens)
        size = int(cache.folder.name)
        found = [np.zeros(0, self._dtype)]
        while start < stop:
            piece, offset = divmod(start, size)
            count = min(stop - start, size - offset)
            found.append(self._read(cache, piece, offset, count))
            start += count
        return np.concatenate(found)

    def _read(self, cache: PieceCache, piece: int, offset: int, count: int) -> NDArray[Any]:
        while True:
            path = cache.path(piece)
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile, by another rank
                return np.fromfile(path, self._dtype, count, offset=offset * self._dtype.itemsize)

    def _cache_of(self, piece_tokens: int) -> PieceCache:
        if self._cache is None or self._cache.folder.name != str(piece_tokens):
            folder = self._pieces / str(piece_tokens)
            folder.mkdir(parents=True, exist_ok=True)
            self._cache = PieceCache(folder, self._fetch, self.limit_bytes)
        return self._cache

    def _fetch(self, piece: int, path: Path) -> None:
        """Fetch a piece and write it to `path`."""
        if self.remote is None:
            raise StorageFailure(f"the training tokens of {self._pieces} are at a URL. Give it: data.shards=URL")
        size = int(path.parent.name)
        parts = list(self._ranges(piece * size, min((piece + 1) * size, self._length)))
        content = np.concatenate([np.frombuffer(self.remote.read(*part), self._dtype) for part in parts])
        if int(content.max()) >= self._vocab_size:
            raise StorageFailure(
                f"{parts[0][0]} of data.shards={self.remote.shown} holds token {int(content.max())}, and the "
                f"vocabulary has {self._vocab_size:,}: it was changed since it was made"
            )
        with replaced(path) as temporary, open(temporary, "xb") as file:
            file.write(content.tobytes())

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield the parts of the shards that hold tokens start ... stop - 1: file, first byte, end."""
        for file, begins, ends in zip(self._files, self._begins.tolist(), self._begins[1:].tolist(), strict=False):
            first, last = max(start, begins), min(stop, ends)
            if first < last:
                head, width = self._header, self._dtype.itemsize
                yield file, head + (first - begins) * width, head + (last - begins) * width
