"""The second reading of a text: a unit becomes a shard of each split, written whole or not at all."""

import contextlib
import functools
import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.chat.roles import encode_marked
from minigpt.data.preparing.units import Unit
from minigpt.data.shards import HEADER_BYTES, HEADS, Shard, shard_name
from minigpt.data.sources.split import count_characters, hash_of, offset
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json, replaced, sha256_of, write_json

UNITS = "units"  # folder of what is known of each finished unit, removed at the end


@dataclass(frozen=True)
class Plan:
    """How a text is divided, found by reading all of it.

    Attributes:
        rule: of the split (minigpt/data/sources/split.py).
        border: hash below which documents are for validation; tail: the first character for validation.
        starts: tail: the characters before each unit.
        shards: for each unit, the number of its shard in each split that it has text for.
        counts: of the whole text.
        notes: what a user may not expect in it.
    """

    rule: str
    border: float
    starts: list[int]
    shards: list[dict[str, int]]
    counts: dict[str, int]
    notes: list[str]


def encode_unit(unit: Unit, *, folder: Path, plan: Plan) -> dict[str, Shard]:
    """Write the shards of a unit into a folder that holds the tokenizer, unless they are there; describe them.

    Raises:
        UserFault: a character that the tokenizer does not know.
        OSError: a shard can't be written.
    """
    record = folder / UNITS / f"{unit.number:03d}.json"
    with contextlib.suppress(UserFault, OSError, LookupError, TypeError):
        finished: dict[str, Shard] = read_json(record)
        if all(sha256_of(folder / shard["file"]) == shard["sha256"] for shard in finished.values()):
            return finished
    tokenizer = _tokenizer(folder)
    with contextlib.ExitStack() as stack:
        numbers = plan.shards[unit.number].items()
        shards = {name: stack.enter_context(_shard(folder, name, number, tokenizer)) for name, number in numbers}
        begun, sizes = {name for name, number in numbers if number}, Counter[str]()
        for (_, continues, name), pieces in itertools.groupby(_pieces(unit, plan, sizes), itemgetter(0, 1, 2)):
            _, write = shards[name]
            if name in begun and not continues and tokenizer.eot is not None:
                write(np.array([tokenizer.eot]))
            if tokenizer.start and not continues:
                write(np.array(tokenizer.start))
            begun.add(name)
            chunks, is_chat = map(itemgetter(3), pieces), unit.options.chat
            for tokens in encode_marked(tokenizer, b"".join(chunks)) if is_chat else tokenizer.encode_chunks(chunks):
                write(tokens)
    written = {name: facts | {"bytes": sizes[name]} for name, (facts, _) in shards.items()}
    write_json(record, written)
    return written


def _pieces(unit: Unit, plan: Plan, sizes: Counter[str]) -> Iterator[tuple[int, bool, str, bytes]]:
    """Yield the text of a unit: number of the document, whether it began in another unit, train | val, and a chunk.

    The bytes of each split are counted in `sizes`.
    """
    left = int(plan.border) - plan.starts[unit.number]  # tail: characters for training
    documents = ((part.file.is_val, document) for part in unit.parts for document in part.documents(unit.options))
    for number, (is_val, document) in enumerate(documents):
        continues = document.head is not None
        hash, chunks = hash_of(document, plan.rule, is_val=is_val)
        for chunk in filter(None, chunks):
            place = len(chunk) * (hash >= plan.border)
            if plan.rule == "tail":
                place = offset(chunk, left)
                left -= count_characters(chunk)
            for name, text in (("train", chunk[:place]), ("val", chunk[place:])):
                if text:
                    sizes[name] += len(text)
                    yield number, continues, name, text


@contextlib.contextmanager
def _shard(
    folder: Path, split: str, number: int, tokenizer: Tokenizer
) -> Iterator[tuple[Shard, Callable[[NDArray[Any]], None]]]:
    """Yield what is known of a shard and a function that appends tokens; it has its name if no error occurs."""
    dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
    shard: Shard = {"file": shard_name(split, number), "dtype": dtype.name, "header_bytes": HEADER_BYTES}
    shard |= {"tokens": 0, "max_token": 0}
    with replaced(folder / shard["file"]) as temporary:
        with open(temporary, "xb") as file:

            def write(tokens: NDArray[Any]) -> None:
                shard["tokens"] += len(tokens)
                shard["max_token"] = max(shard["max_token"], int(tokens.max(initial=0)))
                file.write(np.ascontiguousarray(tokens, dtype).data)

            file.write(bytes(HEADER_BYTES))
            yield shard, write
            file.seek(0)
            file.write(struct.pack("<3i", *HEADS[dtype.name], shard["tokens"]))
        shard["sha256"] = sha256_of(temporary)


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of the shards in a folder, read once in each process."""
    path = folder / "tokenizer.json"
    return load_tokenizer(read_json(path), path)
