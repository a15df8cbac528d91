"""The alpha-beta model: what a step sends under each strategy, and how long that takes by the formula. No torch.

A message of m bytes takes alpha + m / beta seconds. In a ring of n processes an all-gather or a reduce-scatter of S
bytes (the whole tensor) is n - 1 messages of S / n bytes, one after the other; an all-reduce is a reduce-scatter and
an all-gather.

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PASSES = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}  # over the ring
BUCKET_BYTES = 25 << 20  # of gradients that DDP reduces together


@dataclass(frozen=True)
class Line:
    """A connection between neighbours in the ring."""

    alpha: float  # seconds of a message without content
    beta: float  # bytes per second


@dataclass(frozen=True)
class Collective:
    """A collective operation that a step makes `times` times."""

    kind: str  # one of PASSES
    group: str  # part: the processes that hold one copy of the weights; copy: those that hold the same part of each
    ranks: int
    size: float  # bytes of the whole tensor
    times: int

    @property
    def sent(self) -> float:
        """Bytes that each process sends in a step."""
        return self.times * PASSES[self.kind] * self.size * (self.ranks - 1) / self.ranks

    def seconds(self, line: Line) -> float:
        """Return the seconds in a step, by the formula."""
        message = line.alpha + self.size / self.ranks / line.beta
        return self.times * PASSES[self.kind] * (self.ranks - 1) * message


@dataclass(frozen=True)
class Load:
    """What a step has to send, whatever the number of processes."""

    blocks: int
    block: float  # bytes of a block's weights
    root: float  # bytes of the weights around the blocks
    passes: int = 1  # micro-batches of a step for which weights are gathered and gradients reduced anew
    frees: bool = True  # whether a block's gathered weights are freed between its forward and its backward pass
    gathered: float = 1.0  # bytes that are sent of a block's weights, as a fraction of `block`


def collectives(strategy: str, load: Load, ranks: int, shards: int) -> list[Collective]:
    """Return the collectives of an optimizer step that carry weights and gradients.

    Args:
        strategy: ddp | fsdp | hsdp.
        load: what is sent.
        ranks: processes; 1 has none.
        shards: hsdp: processes that hold one copy of the weights.
    """
    whole = load.root + load.blocks * load.block
    if ranks == 1:
        return []
    if strategy == "ddp":
        buckets = math.ceil(whole / BUCKET_BYTES)
        return [Collective("all-reduce", "part", ranks, whole / buckets, buckets)]
    parts = min(shards, ranks) if strategy == "hsdp" else ranks
    gathers = load.passes * load.blocks * (2 if load.frees else 1)
    made = [
        Collective("all-gather", "part", parts, load.gathered * load.block, gathers),
        Collective("all-gather", "part", parts, load.root, load.passes),
        Collective("reduce-scatter", "part", parts, load.block, load.passes * load.blocks),
        Collective("reduce-scatter", "part", parts, load.root, load.passes),
    ]
    if (copies := ranks // parts) > 1:
        made.append(Collective("all-reduce", "copy", copies, load.block / parts, load.passes * load.blocks))
        made.append(Collective("all-reduce", "copy", copies, load.root / parts, load.passes))
    return made


def fit(kind: str, ranks: int, times: Sequence[tuple[float, float]]) -> Line:
    """Return the connection whose times go through the smallest and the largest of some measurements.

    Args:
        kind: one of PASSES.
        ranks: processes that took part.
        times: (bytes of the whole tensor, seconds) of each measurement, by size.
    """
    (small, soon), (large, late) = times[0], times[-1]
    messages = PASSES[kind] * (ranks - 1)
    slope = (late - soon) / (large - small)
    if slope <= 0:  # noise: the larger tensor took no longer
        slope = late / large
    return Line(max(0.0, soon - slope * small) / messages, messages / ranks / slope)


def on_paper(made: Sequence[Collective], lines: Mapping[tuple[str, str], Line]) -> float:
    """Return the calculated seconds of a step's collectives, one after the other.

    Args:
        made: from `collectives`.
        lines: (kind, group) -> the connection.
    """
    return sum(each.seconds(lines[each.kind, each.group]) for each in made)
