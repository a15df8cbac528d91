"""The second reading of a text: a unit becomes a shard of each split, written whole or not at all."""

import contextlib
import functools
import itertools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.chat.roles import encode_marked
from minigpt.data.preparing.units import Unit
from minigpt.data.shards import HEADER_BYTES, HEADS, shard_name
from minigpt.data.sources.split import count_characters, hash_of, offset
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json, replaced, sha256_of, write_json

UNITS = "units"  # folder of what is known of each finished unit, removed at the end
MAX_TOKENS = 2**31 - 1  # that a shard's header can state


@dataclass(frozen=True)
class EncodeJob:
    """A unit to encode.

    Attributes:
        folder: of the shards, and of tokenizer.json.
        rule: of the split.
        border: the hash below which documents are for validation; tail: the first character for validation, counted
            from the beginning of the unit.
        is_text: tail: characters are counted, not bytes.
        shards: the number of the shard in each split that the unit has text for.
        begun: the splits in which units before this one have text.
    """

    unit: Unit
    folder: Path
    rule: str
    border: float
    is_text: bool
    shards: dict[str, int]
    begun: tuple[str, ...]

    @property
    def record(self) -> Path:
        """The file that says what its shards hold: written when they are on the disk."""
        return self.folder / UNITS / f"{self.unit.number:03d}.json"


def finished(job: EncodeJob) -> dict[str, dict[str, Any]] | None:
    """Return what the shards of a unit hold, if it was finished before and they are whole."""
    with contextlib.suppress(UserFault, OSError, LookupError, TypeError):
        record: dict[str, dict[str, Any]] = read_json(job.record)
        if all(sha256_of(job.folder / shard["file"]) == shard["sha256"] for shard in record.values()):
            return record
    return None


def encode_unit(job: EncodeJob) -> dict[str, dict[str, Any]]:
    """Write the shards of a unit; return for each split the shard's file, tokens, bytes, max_token and SHA-256.

    Raises:
        UserFault: a character that the tokenizer does not know.
        OSError: a shard can't be written.
    """
    if record := finished(job):
        return record
    tokenizer = _tokenizer(job.folder)
    with contextlib.ExitStack() as stack:
        shards = {
            name: stack.enter_context(_Shard(job.folder, name, job.shards[name], tokenizer)) for name in job.shards
        }
        begun = set(job.begun)
        for (_, continues, name), pieces in itertools.groupby(_pieces(job), itemgetter(0, 1, 2)):
            shard = shards[name]
            if name in begun and not continues and tokenizer.eot is not None:
                shard.write(np.array([tokenizer.eot]))
            if tokenizer.start and not continues:
                shard.write(np.array(tokenizer.start))
            begun.add(name)
            chunks = shard.counted(map(itemgetter(3), pieces))
            if job.unit.options.chat:
                encoded = encode_marked(tokenizer, b"".join(chunks))
            else:
                encoded = tokenizer.encode_chunks(chunks)
            for tokens in encoded:
                shard.write(tokens)
    record = {name: shard.facts for name, shard in shards.items()}
    write_json(job.record, record)
    return record


def _pieces(job: EncodeJob) -> Iterator[tuple[int, bool, str, bytes]]:
    """Yield the text of a unit: number of the document, whether it began in another unit, train | val, and a chunk."""
    left = int(job.border)
    for number, (file, document) in enumerate(job.unit.documents()):
        continues = document.head is not None
        if job.rule == "tail":
            for chunk in document.chunks:
                place = offset(chunk, left, is_text=job.is_text)
                if place:
                    yield number, continues, "train", chunk[:place]
                if place < len(chunk):
                    yield number, continues, "val", chunk[place:]
                left = max(0, left - (count_characters(chunk) if job.is_text else len(chunk)))
        else:
            hash, chunks = hash_of(document, job.rule, is_val=file.is_val)
            name = "val" if hash < job.border else "train"
            yield from ((number, continues, name, chunk) for chunk in chunks if chunk)


class _Shard:
    """Writes the tokens of one split of a unit; the file has its name after a `with` block without an error."""

    def __init__(self, folder: Path, split: str, number: int, tokenizer: Tokenizer):
        self.name = shard_name(split, number)
        self.tokens = self.bytes = self.max_token = 0
        self.dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
        self._path = folder / self.name

    def __enter__(self) -> "_Shard":
        self._stack = contextlib.ExitStack()
        self._temporary = self._stack.enter_context(replaced(self._path))
        self._file = self._stack.enter_context(open(self._temporary, "xb"))
        self._file.write(bytes(HEADER_BYTES))
        return self

    def write(self, tokens: NDArray[Any]) -> None:
        self.tokens += len(tokens)
        self.max_token = max(self.max_token, int(tokens.max(initial=0)))
        self._file.write(np.ascontiguousarray(tokens, self.dtype).data)

    def counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks of a text, and count their bytes."""
        for chunk in chunks:
            self.bytes += len(chunk)
            yield chunk

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            if self.tokens > MAX_TOKENS:
                raise UserFault(
                    f"{self.name} would hold {self.tokens:,} tokens: divide the large packed file of its text"
                )
            self._file.seek(0)
            self._file.write(struct.pack("<3i", *HEADS[self.dtype.name], self.tokens))
            self._file.flush()
            self.sha256 = sha256_of(self._temporary)
        self._stack.__exit__(*error)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "max_token": self.max_token,
            "sha256": self.sha256,
        }


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of the shards in a folder, read once in each process."""
    path = folder / "tokenizer.json"
    return load_tokenizer(read_json(path), path)
