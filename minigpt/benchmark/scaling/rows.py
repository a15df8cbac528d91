"""Measurements of a step on some devices, calculations for more devices, and the table of both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigpt.benchmark.table import number
from minigpt.report.scaling import Point

BEYOND = 16  # times as many devices as there are, calculated
HEADS = [
    "devices", "batch", "ms/step", "without sending", "exposed, ms", "collectives alone, ms", "on paper, ms",
    "sent, MB", "tokens/s", "efficiency",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A step on a number of devices. Times are in seconds, medians of the rounds."""

    devices: int
    batch: str  # weak: the batch of each device is fixed; strong: that of all together is; both
    tokens: int  # of a step
    step: float
    silent: float  # the step without communication
    alone: float  # its collectives, one after the other
    paper: float  # the same by the formula
    sent: float  # bytes per step and process
    measured: bool = True

    @property
    def exposed(self) -> float:
        """Seconds that communication adds to a step."""
        return max(0.0, self.step - self.silent)


def beyond(last: Row, share: int, on_paper: Callable[[int], tuple[float, float]]) -> list[Row]:
    """Return calculated rows for more devices than there are.

    Their connections are assumed to be the same, and the same fraction of their communication to be exposed.

    Args:
        last: the row of all devices that there are.
        share: sequences of a step on each of them.
        on_paper: devices -> seconds of a step's collectives, and bytes that each process sends.
    """
    visible, computing, rows = last.exposed / last.paper, last.step - last.exposed, []
    for more in (2**power for power in range(1, BEYOND.bit_length())):
        devices = more * last.devices
        paper, sent = on_paper(devices)
        for batch, part in (("weak", 1), ("strong", more)):
            if part <= share:  # else a device would have less than a sequence
                silent, tokens = computing / part, last.tokens * more // part
                rows.append(Row(devices, batch, tokens, silent + visible * paper, silent, paper, paper, sent, False))
    return rows


def efficiency(row: Row, rows: Sequence[Row]) -> float:
    """Return the tokens per second and device, as a fraction of those of the fewest devices with such a batch."""
    base = next(each for each in rows if each.batch in (row.batch, "both") or row.batch == "both")
    return (row.tokens / row.step / row.devices) / (base.tokens / base.step / base.devices)


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """Return a row of the table."""
    times = [row.step, row.silent, row.exposed, row.alone, row.paper]
    figures = [number(1e3 * each) for each in times]
    if not row.measured:
        figures[3] = ""
    rest = [number(row.sent / 1e6), number(row.tokens / row.step), f"{efficiency(row, rows):.1%}"]
    return [str(row.devices), row.batch if row.measured else f"{row.batch}, on paper", *figures, *rest]


def point_of(row: Row, rows: Sequence[Row]) -> Point:
    """Return a row's point in the picture."""
    return Point(row.devices, row.batch, row.measured, efficiency(row, rows), 1e3 * row.silent, 1e3 * row.exposed)


def summary(rows: Sequence[Row], last: Row) -> str:
    """Return the last line: the result on all devices."""
    hidden = 1 - min(1.0, last.exposed / last.alone) if last.alone else 1.0
    sending = f"sending {number(last.sent / 1e6)} MB adds {last.exposed / last.step:.1%} to a step"
    efficient = f"Scaling on {last.devices} devices: {efficiency(last, rows):.1%} efficient"
    return f"{efficient}; {sending}; {hidden:.0%} of its collectives' time is hidden"
