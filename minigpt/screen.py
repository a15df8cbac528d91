"""What is shown on the screen: numbers as people read them, lines, progress, one line that is replaced in place."""

import contextlib
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence

from minigpt.faults import CONTROL_PICTURES

Say = Callable[[str], object]

LINE_SECONDS = 5.0  # between lines
BAR_COLUMNS = 5, 24  # at least, at most
MOVE_SECONDS = 0.2  # between two states of the moving line


def can_move() -> bool:
    """Whether stdout is a terminal's or a notebook's, in both of which a carriage return begins the line again."""
    return sys.stdout.isatty() or type(sys.stdout).__module__ == "ipykernel.iostream"


def cleared() -> str:
    """Return what clears the moving line; a notebook knows no escape for it."""
    width = shutil.get_terminal_size().columns - 1
    return "\r\x1b[K" if sys.stdout.isatty() else f"\r{' ' * width}\r"


def tell(line: str) -> None:
    """Print a line in place of the moving one, with control characters made visible."""
    line = line.translate(CONTROL_PICTURES)
    with contextlib.suppress(OSError):  # a terminal that was closed must not keep a training from its last save
        print(cleared() + line if can_move() else line, flush=True)


def note(text: str) -> None:
    """Print a message to stderr, where stdout is for a model's text alone."""
    print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print a part of a model's text: as it is to a file, with control characters made visible to a terminal."""
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))  # a terminal without é gets a ?
    sys.stdout.flush()


def move(parts: Sequence[str], share: float) -> None:
    """Show, in a terminal or a notebook, a line that the next one replaces, without the last parts if it is too wide.

    A bar before it shows the share of the work that is done, in colour unless NO_COLOR is set.
    """
    from tqdm import tqdm

    width, line = shutil.get_terminal_size().columns - 1, ""
    least, most = BAR_COLUMNS
    for part in parts:
        if line and len(line) + 2 + len(part) > width - least:
            break
        line += f"  {part}" if line else part
    colour = "green" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else None
    room = min(most, width - len(line))
    bar = tqdm.format_meter(share, 1, 0, ncols=room, bar_format="{bar} ", colour=colour) if room >= least else ""
    print(f"{cleared()}{bar}{line[:width]}", end="", flush=True)


def clear_moving_line() -> None:
    """Clear the moving line, if there can be one."""
    if can_move():
        print(cleared(), end="", flush=True)


class Progress:
    """Counts bytes, or other units of a work, and shows the count, the rate and the time left.

    On a terminal one line moves; elsewhere a line is printed now and then.

    Args:
        what: names the work.
        total: how much is to be done.
        unit: in which the count is shown.
        size: how much of what is counted makes one unit.
    """

    def __init__(self, what: str, total: int, *, unit: str = "MB", size: float = 1e6):
        self.what, self.total, self.unit, self.size = what, total, unit, size
        self.done = 0
        self.begun = self.shown = time.monotonic()
        self.moves = can_move()

    def __call__(self, count: int) -> None:
        """Add to the count."""
        self.done += count
        now = time.monotonic()
        if now - self.shown >= (MOVE_SECONDS if self.moves else LINE_SECONDS):
            self.shown = now
            line = f"{self.what}: {self.done / self.size:,.0f} of {self.total / self.size:,.0f} {self.unit}"
            if self.done:
                rate = self.done / (now - self.begun)
                left = duration(max(0, self.total - self.done) / rate)
                line += f", {rate / self.size:,.1f} {self.unit}/s, {left} left"
            move([line], self.done / self.total) if self.moves else tell(line)


def size_text(n_bytes: float) -> str:
    """Return a number of bytes as people write it."""
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:,.1f} GB"
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 1e6 else f"{n_bytes:,.0f} bytes"


def short_number(value: float) -> str:
    """Return three digits and a unit: 804,096 -> 804 k, 124,439,808 -> 124 M."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(value) < 999.5 or unit == " T":
            break
        value /= 1000
    return f"{value:.3g}{unit}"


def number_of(count: int, noun: str) -> str:
    """Return a number of things in words: 1 layer, 2 layers."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def duration(seconds: float) -> str:
    """Return the two largest units: 75 -> 1 min 15 s."""
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            remainder = whole % size // smaller
            return f"{whole // size} {unit} {remainder} {smaller_unit}" if remainder else f"{whole // size} {unit}"
    return f"{whole} s" if seconds >= 10 else f"{seconds:.1f} s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines of aligned columns."""

    def width(cell: str) -> int:
        return len(cell) + sum(unicodedata.east_asian_width(character) in "WF" for character in cell)

    widths = [max(map(width, cells)) for cells in zip(*rows, strict=True)]
    padded = ([cell + " " * (most - width(cell)) for cell, most in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
