"""The KV cache: keys and values of tokens already read, so that each is computed once.

Rows may hold different numbers of tokens: those of row b are in columns 0 .. lengths[b] - 1. A prompt shorter than
its neighbours is padded on the right, read and trimmed; the next token overwrites the padding.
A cache may have room for more rows than it holds: new rows `join` at the end, and the last row takes the place of one
that leaves.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

FIRST_COLUMNS = 256


class KVCache:
    """Keys and values of up to `block_size` tokens per row and layer; the memory grows with the texts.

    Args:
        n_layer: layers L.
        batch: rows B.
        n_kv_head: heads G of keys and values.
        block_size: columns per row at most.
        head_dim: D.
        like: a tensor of the model's dtype, on its device.
    """

    def __init__(self, n_layer: int, batch: int, n_kv_head: int, block_size: int, head_dim: int, *, like: Tensor):
        self.keys = like.new_zeros(n_layer, batch, n_kv_head, min(block_size, FIRST_COLUMNS), head_dim)
        self.values = torch.zeros_like(self.keys)
        self.block_size = block_size
        self.set_lengths([0] * batch)

    def reserve(self, columns: int) -> None:
        """Make room for `columns` columns, at least doubling it: a large context costs memory only where it is used."""
        held = self.keys.shape[3]
        if columns > held:
            more = (0, 0, 0, min(self.block_size, max(columns, 2 * held)) - held)
            self.keys, self.values = nn.functional.pad(self.keys, more), nn.functional.pad(self.values, more)

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Set how many columns each row uses, to trim rows or after a padded read."""
        self.on_device = torch.tensor(lengths, dtype=torch.int64).to(self.keys.device)  # (B,): a copy
        self._count(list(lengths))

    def advance(self, T: int) -> None:
        """Count T more columns in every row, without waiting for the device."""
        self.on_device = self.on_device + T
        self._count([length + T for length in self.lengths])

    def _count(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.longest = max(lengths, default=0)
        self.uniform_length = self.longest if min(lengths, default=0) == self.longest else None
        self._next: Tensor | None = None

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append T keys and values of a layer, (B, G, T, D) each, to the B rows in use; `advance` then counts them.

        Returns:
            All its keys and values so far, (B, G, S, D) each, S = the longest row's length, new tokens included.
        """
        B, T, S = k.shape[0], k.shape[2], self.longest + k.shape[2]
        self.reserve(S)
        keys, values = self.keys[layer, :B], self.values[layer, :B]
        start = self.uniform_length
        if start is not None:  # all rows at one length: a plain slice
            keys[:, :, start : start + T] = k
            values[:, :, start : start + T] = v
        else:
            columns = self.positions(T)[:, None, :, None].expand_as(k)
            keys.scatter_(2, columns, k.to(keys.dtype))  # under autocast they come in 16 bits
            values.scatter_(2, columns, v.to(values.dtype))
        return keys[:, :, :S], values[:, :, :S]

    def positions(self, T: int) -> Tensor:
        """Return (B, T): the positions, and so the columns, of each row's next T tokens; made once for all layers."""
        if self._next is None or self._next.shape[1] != T:
            self._next = self.on_device[:, None] + torch.arange(T, device=self.keys.device)
        return self._next

    def mask(self, T: int) -> Tensor:
        """Return (B, 1, T, S) bool: token t of row b sees columns 0 .. lengths[b] + t."""
        columns = torch.arange(self.longest + T, device=self.keys.device)
        return (columns <= self.positions(T)[:, :, None])[:, None]

    def select(self, rows: Sequence[int]) -> "KVCache":
        """Return a copy of some rows; a row may be named several times, for several samples of one prompt."""
        part = object.__new__(KVCache)
        part.keys, part.values = self.keys[:, list(rows)], self.values[:, list(rows)]
        part.block_size = self.block_size
        part.set_lengths([self.lengths[row] for row in rows])
        return part

    def join(self, part: "KVCache") -> None:
        """Write another cache's rows behind those held; there must be room for them."""
        held = len(self.lengths)
        self.put(range(held, held + len(part.lengths)), part)

    def leave(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        last = len(self.lengths) - 1
        if row != last:
            self.put([row], self.select([last]))
        self.set_lengths(self.lengths[:-1])

    def put(self, rows: Sequence[int], part: "KVCache") -> None:
        """Copy a part into these rows: one that `select` returned, or a cache that was filled separately."""
        self.reserve(part.longest)
        self.keys[:, list(rows), :, : part.longest] = part.keys[:, :, :, : part.longest]
        self.values[:, list(rows), :, : part.longest] = part.values[:, :, :, : part.longest]
        lengths = dict(enumerate(self.lengths)) | dict(zip(rows, part.lengths, strict=True))
        self.set_lengths(list(lengths.values()))
