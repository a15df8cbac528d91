"""Units of work: about 4 MiB of a text each, encoded by any process, in any order, and put together by number.

A unit is a frame of bytes: a line of JSON, [split, how it begins, bytes] for each piece of a document (of a
conversation also "chat"), and their text. Its result is a line of JSON and the tokens of both splits; it stands in a
file of its own, under its final name only when it is whole and on the disk. The line identifies what the unit was made
from, so a unit is made once, whatever is killed, and never mistaken for that of another text.

Documents are cut where `Tokenizer.runs` allows, so the tokens are those of whole documents, for any size of units.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.data.chat.roles import encode_marked
from minigpt.data.shards import SplitWriter
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import write_file

UNIT_BYTES = 1 << 22
BEGINS, END_FIRST, GOES_ON = range(3)  # a piece begins its split, follows an end-of-text, or continues a document

Job = tuple[Path, bytes]  # a unit's file, and its frame
Engine = Callable[
    [Iterable[Job]], Generator[Job, None, None]
]  # frames to results, in any order, a bounded number at a time


def cut(parts: Iterable[tuple[str, Iterable[bytes]]], tokenizer: Tokenizer, *, chat: bool = False) -> Iterator[bytes]:
    """Cut a text that was split (minigpt/data/sources/split.py) into frames of about UNIT_BYTES.

    Args:
        parts: of the text, as `split` gives them.
        tokenizer: knows where the text may be cut.
        chat: whether the text holds conversations (minigpt/data/chat/roles.py).
    """
    kind = ["chat"] * chat
    pieces: list[list[Any]] = []
    held: list[bytes] = []
    size, begun = 0, set[str]()  # the splits that have text
    for name, chunks in parts:
        pieces.append([name, END_FIRST if name in begun and tokenizer.eot is not None else BEGINS, 0, *kind])
        for run in filter(None, tokenizer.runs(chunks)):
            if size >= UNIT_BYTES:
                yield _frame(pieces, held)
                pieces, held, size = [[name, GOES_ON, 0, *kind]], [], 0
            pieces[-1][2] += len(run)
            held.append(run)
            size += len(run)
            begun.add(name)
    if pieces:
        yield _frame(pieces, held)


def _frame(pieces: list[list[Any]], held: list[bytes]) -> bytes:
    return b"\n".join([json.dumps(pieces, separators=(",", ":")).encode(), b"".join(held)])


def encode_unit(frame: bytes, tokenizer: Tokenizer) -> bytes:
    """Return the result of a frame.

    Raises:
        UserFault: a character that the tokenizer does not know.
    """
    begin = frame.index(b"\n") + 1
    splits: dict[str, dict[str, int]] = {}
    tokens: dict[str, list[Any]] = {}
    for name, how, size, *kind in json.loads(frame[:begin]):
        counts = splits.setdefault(name, {"tokens": 0, "bytes": 0})
        counts["bytes"] += size
        made = tokens.setdefault(name, [])
        if how == END_FIRST:
            made.append(np.array([tokenizer.eot], tokenizer.dtype))
        try:
            piece = frame[begin : begin + size]
            made += encode_marked(tokenizer, piece) if kind else tokenizer.encode_chunks([piece])
        except UserFault as fault:
            where = ", counted from a place inside the document" if how == GOES_ON else ""
            raise UserFault(f"{fault}{where}") from None
        begin += size
    on_disk = np.dtype(tokenizer.dtype).newbyteorder("<")
    content = bytearray()
    for name in sorted(tokens):
        array = np.concatenate([np.zeros(0, on_disk), *tokens[name]]).astype(on_disk)
        splits[name]["tokens"] = len(array)
        content += array.tobytes()
    head = {"unit": identity(frame, tokenizer), "sha256": hashlib.sha256(content).hexdigest(), "splits": splits}
    return json.dumps(head).encode() + b"\n" + content


def identity(frame: bytes, tokenizer: Tokenizer) -> str:
    """Return a hash (hex) of all that a unit's result is made from."""
    return hashlib.sha256(tokenizer.hash.encode() + frame).hexdigest()


def make_units(
    folder: Path,
    frames: Iterable[bytes],
    tokenizer: Tokenizer,
    *,
    engine: Engine | None = None,
    part: tuple[int, int] = (0, 1),
    progress: Any,
) -> Generator[str, None, None]:
    """Make the units of a text that are not there yet; yield the identities of all, in order.

    An identity comes as soon as its unit and all before it are made (or left to other parts), so that a caller can put
    them together while others are encoded. A caller that stops early must close the generator: that ends the engine.

    Args:
        folder: an existing folder for their files.
        frames: of the whole text.
        tokenizer: to encode with.
        engine: makes results of frames; this process itself if None.
        part: (i, n): only units i, i + n, i + 2 n ... are made.
        progress: a Progress, in bytes of text.

    Raises:
        UserFault: as encoding does.
        OSError: a file can't be written.
    """
    identities: list[str] = []
    encoded: set[Path] = set()  # files of units that the engine is working on

    def missing() -> Iterator[Job]:
        for number, frame in enumerate(frames):
            identities.append(identity(frame, tokenizer))
            path = unit_path(folder, number)
            if number % part[1] != part[0]:
                continue
            if _made_from(path) == identities[-1]:
                progress.skip(len(frame))
            else:
                encoded.add(path)
                yield path, frame

    def here(jobs: Iterable[Job]) -> Generator[Job, None, None]:
        return ((path, encode_unit(frame, tokenizer)) for path, frame in jobs)

    given = 0
    with contextlib.closing((engine or here)(missing())) as results:
        for path, result in results:
            write_file(path, result)
            encoded.remove(path)
            counts = json.loads(result[: result.index(b"\n")])["splits"].values()
            progress(sum(split["bytes"] for split in counts))
            while given < len(identities) and unit_path(folder, given) not in encoded:
                yield identities[given]
                given += 1
    yield from identities[given:]


def count_units(n_bytes: int) -> int:
    """Return about how many units `n_bytes` of text make."""
    return max(1, n_bytes // UNIT_BYTES)


def unit_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.unit"


def _made_from(path: Path) -> str | None:
    """Return the identity of the unit in a file, or None if it is not there or not whole."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(path, "rb") as file:
        return str(json.loads(file.readline())["unit"])
    return None


def missing_units(folder: Path, identities: list[str]) -> list[int]:
    """Return the numbers of the units that are still to be made."""
    return [number for number, each in enumerate(identities) if _made_from(unit_path(folder, number)) != each]


def assemble(folder: Path, identities: Iterable[str], writers: dict[str, SplitWriter]) -> None:
    """Append the tokens of all units to the splits, in order.

    Args:
        folder: of the units.
        identities: of the units; each unit is read when its identity has come.
        writers: of the splits, by their names.

    Raises:
        StorageFailure: a unit was changed since it was written; it is removed, and made again next time.
    """
    for number, wanted in enumerate(identities):
        path = unit_path(folder, number)
        with open(path, "rb") as file:
            head, content = json.loads(file.readline()), file.read()
        if head["unit"] != wanted or hashlib.sha256(content).hexdigest() != head["sha256"]:
            path.unlink()
            raise StorageFailure(f"{path} was changed since it was written, and is removed. Run the same command again")
        begin = 0
        for name in sorted(head["splits"]):
            writer, counts = writers[name], head["splits"][name]
            tokens = np.frombuffer(content, writer.dtype, counts["tokens"], begin)
            begin += tokens.nbytes
            writer.write(tokens)
            writer.bytes += counts["bytes"]
