"""Packed files, .gz and .zst, unpacked as they are read."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_WINDOW_BYTES = 1 << 31  # of `zstd --long=31`, the longest that there is


class DamagedPacking(ValueError):
    """A packed file that is cut, flipped, or not packed at all."""


def unpack(path: Path, packing: str, size: int) -> Iterator[bytes]:
    """Yield what a packed file holds, about `size` bytes at a time."""
    try:
        yield from PACKINGS[packing](path, size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedPacking(f"is cut or no {'gzip' if packing == '.gz' else 'zstd'} file ({error})") from None


def _gzip(path: Path, size: int) -> Iterator[bytes]:
    with gzip.open(path) as file:
        while chunk := file.read(size):
            yield chunk


def _zstd(path: Path, size: int) -> Iterator[bytes]:
    """Unpack frame by frame: zstandard's own reader does not notice that a file was cut."""
    import zstandard

    frame = None
    with open(path, "rb") as file:
        try:
            while piece := file.read(size):
                while piece:
                    frame = frame or zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
                    yield frame.decompress(piece)
                    piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
    if frame:
        raise EOFError("its end is missing")


PACKINGS: dict[str, Callable[[Path, int], Iterator[bytes]]] = {".gz": _gzip, ".zst": _zstd}
