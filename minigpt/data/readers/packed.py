"""Packed files, .gz and .zst: unpacked as they are read, in memory that does not depend on their contents."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_RATIO = 200  # of unpacked bytes to packed ones: text reaches 20, gzip at most 1,032, zstd 30,000
MIN_BOMB_BYTES = 1 << 26  # fewer unpacked bytes are no danger
MAX_WINDOW_BYTES = 1 << 31  # of `zstd --long=31`, the longest that there is: unpacking may take that much memory
ZSTD_FEED_BYTES = 512  # four bytes can stand for 128 KiB, so these unpack to 16 MiB at most


class DamagedPacking(ValueError):
    """A packed file that is cut, flipped, a decompression bomb, or not packed at all."""


def unpack(path: Path, size: int) -> Iterator[bytes]:
    """Yield what a packed file holds, about `size` bytes at a time.

    Raises:
        DamagedPacking: it can't be unpacked.
        OSError: it can't be read.
    """
    packing, limit, done = path.suffix.lower(), bomb_bytes(path), 0
    try:
        for chunk in PACKINGS[packing](path, size):
            done += len(chunk)
            if done > limit:
                raise DamagedPacking(f"is a decompression bomb: of {path.stat().st_size:,} bytes it makes {done:,}")
            yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedPacking(f"is cut or no {'gzip' if packing == '.gz' else 'zstd'} file ({error})") from None


def bomb_bytes(path: Path) -> int:
    """Return the number of unpacked bytes above which a file of this size is a decompression bomb."""
    return max(MIN_BOMB_BYTES, MAX_RATIO * path.stat().st_size)


def _gzip(path: Path, size: int) -> Iterator[bytes]:
    with gzip.open(path) as file:
        while chunk := file.read(size):
            yield chunk


def _zstd(path: Path, size: int) -> Iterator[bytes]:
    """Unpack frame by frame: zstandard's own reader does not notice that a file was cut."""
    import zstandard

    frame, held = None, bytearray()
    with open(path, "rb") as file:
        try:
            while piece := file.read(ZSTD_FEED_BYTES):
                while piece:
                    frame = frame or zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
                    held += frame.decompress(piece)
                    piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
                if len(held) >= size:
                    yield bytes(held)
                    held.clear()
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
    if frame:
        raise EOFError("its end is missing")
    if held:
        yield bytes(held)


PACKINGS: dict[str, Callable[[Path, int], Iterator[bytes]]] = {".gz": _gzip, ".zst": _zstd}
