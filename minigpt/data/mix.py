"""Several sources as one corpus: `data.mix={books/: 0.7, code/: 0.3}`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.order import check_length, deal, quotas, samples_of_step, starts_of
from minigpt.data.shards import TokenSplit, fingerprint, spans, windows_of
from minigpt.seeds import fold


class MixedSplit:
    """One split of several sources, one source behind the other. `len()` counts tokens.

    Args:
        parts: the sources' splits, by their names.
        shares: each source's share of the training windows, relative to the sum of all shares.

    Attributes:
        bytes: of text behind the tokens.
        fingerprint: SHA-256 (hex) of the parts, whatever their shares are.
    """

    def __init__(self, parts: Mapping[str, TokenSplit], shares: Mapping[str, float]):
        self.name = next(iter(parts.values())).name
        self.parts = dict(parts)
        total = sum(shares[name] for name in parts)
        self.shares = {name: shares[name] / total for name in parts}
        self.quotas = quotas(tuple(self.shares.values()))
        self.bytes = sum(part.bytes for part in parts.values())
        self.fingerprint = fingerprint([part.fingerprint for part in parts.values()])
        self._begins = np.cumsum([0, *map(len, parts.values())]).tolist()  # of each part, and the end

    def __len__(self) -> int:
        return int(self._begins[-1])

    def window_starts(self, step: int, *, seed: int, block_size: int, sequences: int) -> NDArray[np.int64]:
        """Return where the windows of batch `step` begin, each within one source: see minigpt.data.order.

        Each source has an order of its own, which follows from the seed and its tokens, not from its name or place.
        """
        numbers, samples = deal(samples_of_step(step, sequences), self.quotas)
        starts = np.empty(sequences, dtype=np.int64)
        for number, (name, part) in enumerate(self.parts.items()):
            check_length(f"{name}: train", len(part), block_size)
            mine = numbers == number
            part_seed = seed if len(self.parts) == 1 else fold(seed, int(part.fingerprint[:15], 16))
            begins = starts_of(samples[mine], seed=part_seed, n_tokens=len(part), block_size=block_size)
            starts[mine] = self._begins[number] + begins
        return starts

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return windows as `TokenSplit.windows` does."""
        return windows_of(self, starts, length)

    def weights(self, starts: NDArray[np.int64], length: int) -> None:
        """Return None: all tokens count the same as targets."""

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Return tokens as `TokenSplit.tokens` does."""
        parts = [*self.parts.values()]
        pieces = [parts[n].tokens(first, end) for n, first, end in spans(self._begins, start, stop)]
        return np.concatenate(pieces) if pieces else parts[0].tokens(0, 0)


def parts_of(split: Any) -> dict[str, Any]:
    """Return the sources of a split by their names; a split that is no mixture is its own source."""
    return split.parts if isinstance(split, MixedSplit) else {split.name: split}


def short_names(sources: Mapping[str, float]) -> dict[str, str]:
    """Return the sources of a mixture by short names, which rows and the screen use."""
    stems = [re.sub(r"[^\w.+-]+", "-", Path(source.rstrip("/")).stem).strip("-.") or "source" for source in sources]
    names = [stem if stems.count(stem) == 1 else f"{stem}-{number}" for number, stem in enumerate(stems, 1)]
    if len({*names}) < len(names):
        names = [f"{number}-{stem}" for number, stem in enumerate(stems, 1)]
    return dict(zip(names, sources, strict=True))
