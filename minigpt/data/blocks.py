"""The order of windows in a text that is larger than the disk: random within a part of it that a cache holds.

The tokens are cut into pieces of one size. In each epoch the pieces come in a random order, and as many as make a
block are mixed: a batch holds windows from all over its block, and the next block can be fetched meanwhile. A block
has at least two pieces for each window of a batch. Each window of an epoch's grid comes once; where a piece's grid
begins is drawn per epoch. All this is a function of the seed and the number of a sample, as in order.py.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minigpt.data.order import OFFSET, draw, epoch_windows, permute

PIECE_TOKENS = 1 << 20
MIN_BLOCK = 16  # pieces
_BLOCK, _PIECES = 3, 0  # what a draw is for, beside those of order.py


@dataclass(frozen=True)
class Blocks:
    """A text of n_tokens, cut into pieces and blocks.

    Args:
        n_tokens: length of the split.
        block_size: tokens per window.
        sequences: windows per batch.
        seed: any whole number.
    """

    n_tokens: int
    block_size: int
    sequences: int
    seed: int

    @property
    def piece_tokens(self) -> int:
        """Tokens of each piece but the last."""
        return max(PIECE_TOKENS, 16 * self.block_size)

    @property
    def pieces(self) -> int:
        """Number of pieces. A rest too short for a window is not counted."""
        whole, rest = divmod(self.n_tokens, self.piece_tokens)
        return max(1, whole + (rest > self.block_size))

    @property
    def pieces_of_block(self) -> int:
        """Number of pieces that are mixed in a block."""
        return min(self.pieces, max(MIN_BLOCK, 2 * self.sequences))

    def size(self, piece: int) -> int:
        """Return the number of tokens of a piece."""
        return min(self.piece_tokens, self.n_tokens - piece * self.piece_tokens)

    def windows(self, piece: int) -> int:
        """Return the number of windows of a piece in an epoch."""
        return epoch_windows(self.size(piece), self.block_size)

    @property
    def epoch(self) -> int:
        """Windows of an epoch."""
        return (self.pieces - 1) * self.windows(0) + self.windows(self.pieces - 1)

    def starts(self, samples: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return where the windows of some samples begin, (n,)."""
        found = np.empty(len(samples), dtype=np.int64)
        epochs, places = np.divmod(samples, np.uint64(self.epoch))
        for epoch in np.unique(epochs):
            begins = _block_begins(self, int(epoch))
            blocks = np.searchsorted(begins, places, side="right") - 1
            for block in np.unique(blocks[epochs == epoch]):
                mine = (epochs == epoch) & (blocks == block)
                within = places[mine] - np.uint64(begins[block])
                found[mine] = self._starts_in_block(int(epoch), int(block), within)
        return found

    def _starts_in_block(self, epoch: int, block: int, places: NDArray[np.uint64]) -> NDArray[np.int64]:
        begins, pieces, W = _block_begins(self, epoch), self.pieces_in(epoch, block), self.windows(0)
        count = int(begins[block + 1] - begins[block])
        key = draw(self.seed, np.array([epoch * 2**32 + block], dtype=np.uint64), _BLOCK)
        slots, windows = np.divmod(permute(places, count, np.repeat(key, len(places))), np.uint64(W))
        chosen = pieces[slots.astype(np.int64)]
        sizes = np.minimum(self.piece_tokens, self.n_tokens - chosen * self.piece_tokens)
        own = np.maximum(1, sizes // self.block_size - 1)
        ranges = np.minimum(self.block_size, sizes - own * self.block_size)
        offsets = draw(self.seed, np.array([epoch], dtype=np.uint64), OFFSET) % ranges.astype(np.uint64)
        return chosen * self.piece_tokens + (offsets + windows * np.uint64(self.block_size)).astype(np.int64)

    def pieces_in(self, epoch: int, block: int) -> NDArray[np.int64]:
        """Return the pieces of a block; the short one comes last."""
        K = self.pieces_of_block
        pieces = _pieces_of(self, epoch)[block * K : (block + 1) * K]
        return np.concatenate([pieces[pieces != self.pieces - 1], pieces[pieces == self.pieces - 1]])

    def needed(self, step: int) -> list[int]:
        """Return the pieces of the block that batch `step` ends in and of the next one: what a cache should hold."""
        epoch, place = divmod((step + 1) * self.sequences - 1, self.epoch)
        block = int(np.searchsorted(_block_begins(self, epoch), place, side="right")) - 1
        last = block + 1 >= len(_block_begins(self, epoch)) - 1
        following = self.pieces_in(epoch + 1, 0) if last else self.pieces_in(epoch, block + 1)
        return list(dict.fromkeys([*self.pieces_in(epoch, block).tolist(), *following.tolist()]))


@functools.lru_cache(maxsize=4)
def _pieces_of(blocks: Blocks, epoch: int) -> NDArray[np.int64]:
    """Return the order of the pieces in an epoch."""
    places = np.arange(blocks.pieces, dtype=np.uint64)
    keys = np.repeat(draw(blocks.seed, np.array([epoch], dtype=np.uint64), _PIECES), blocks.pieces)
    return permute(places, blocks.pieces, keys).astype(np.int64)


@functools.lru_cache(maxsize=4)
def _block_begins(blocks: Blocks, epoch: int) -> NDArray[np.int64]:
    """Return the number of the first window of each block in an epoch, and the number of windows."""
    windows = np.where(
        _pieces_of(blocks, epoch) == blocks.pieces - 1, blocks.windows(blocks.pieces - 1), blocks.windows(0)
    )
    sums = np.add.reduceat(windows, np.arange(0, blocks.pieces, blocks.pieces_of_block))
    return np.concatenate([[0], np.cumsum(sums)])
