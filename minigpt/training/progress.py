"""What the screen shows while training: one line that moves in a terminal, plain lines anywhere else."""

import shutil
import sys
import time
from typing import Any

from minigpt.config.schema import TrainConfig

PLAIN_LINE_SECONDS = 5.0  # without a terminal, at most one line in this time, validations apart


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    hours, rest = divmod(int(seconds + 0.5), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Screen:
    """Prints step, loss, time left, speed and learning rate (rank 0 only).

    A dead terminal must not stop a run: what can't be printed is dropped.

    Args:
        config: of the run.
        total_steps: optimizer steps of the run, or None.
        stream: to print to; stdout if None.
    """

    def __init__(self, config: TrainConfig, total_steps: int | None, stream: Any = None):
        self.config = config
        self.total_steps = total_steps
        self.stream = stream or sys.stdout
        self.in_place = self.stream.isatty()
        self.shown_at = 0.0
        self.line_open = False

    def print(self, text: str = "") -> None:
        """A whole line, after clearing the moving one."""
        self._write(("\r\x1b[K" if self.line_open else "") + text + "\n")
        self.line_open = False

    def block(self, title: str, text: str) -> None:
        """Several lines under a title."""
        self.print(f"--- {title} " + "-" * max(3, 60 - len(title)))
        self.print(text.rstrip("\n"))
        self.print("-" * 65)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.in_place = False

    def show(self, row: dict[str, Any]) -> None:
        """Show a step's row: a moving line in a terminal, cut between its parts; elsewhere a line now and then."""
        parts = describe(row, self.config, self.total_steps)
        now = time.monotonic()
        if "val/loss" in row or (not self.in_place and (now - self.shown_at >= PLAIN_LINE_SECONDS or row["step"] == 1)):
            self.print("  ".join(parts))
            self.shown_at = now
        elif self.in_place:
            width = shutil.get_terminal_size().columns - 1
            while len("  ".join(parts)) > width and len(parts) > 1:
                parts.pop()
            self._write("\r" + "  ".join(parts)[:width] + "\x1b[K")
            self.line_open = True

    def close(self) -> None:
        """Leave the moving line as it is."""
        if self.line_open:
            self.print()


def describe(row: dict[str, Any], config: TrainConfig, total: int | None) -> list[str]:
    """Return the parts of a row's line, the most important first; what is not known is left out."""
    step, speed, minutes = row["step"], row["tokens_per_second"], config.trainer.max_minutes
    digits = len(f"{total:,}") if total else 1
    parts = [f"step {step:>{digits},}" + (f"/{total:,} {step / total:4.0%}" if total else "")]
    parts.append("loss not finite" if row["train/loss"] is None else f"loss {row['train/loss']:.4f}")
    if row.get("val/loss") is not None:
        parts.append(f"val {row['val/loss']:.4f} ({row['val/bits_per_byte']:.3f} bits/byte)")
    if speed:
        left = [(total - step) * config.batch_tokens / speed] if total else []
        left += [60 * minutes - row["seconds"]] if minutes else []
        parts += [f"ETA {duration(max(0.0, min(left)))}", f"{speed:,.0f} tok/s"]
    parts.append(f"lr {row['lr']:.2e}")
    return [*parts, f"MFU {row['mfu']:.1%}"] if row["mfu"] is not None else parts
