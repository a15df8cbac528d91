"""What the screen shows while training: one line that moves in a terminal, plain lines anywhere else."""

import shutil
import sys
import time
from typing import Any

import lightning as L

from minigpt.training.boundary import at_step_end
from minigpt.training.module import LanguageModel

PLAIN_LINE_SECONDS = 5.0  # without a terminal, at most one line in this time, validations apart


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    hours, rest = divmod(int(seconds + 0.5), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress(L.Callback):
    """Prints step, loss, learning rate, tokens/s, MFU and the time left (rank 0 only).

    A dead terminal must not stop a run: what can't be printed is dropped.
    """

    def __init__(self, stream: Any = None):
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

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        row = pl_module.row
        if not (trainer.is_global_zero and row and at_step_end(trainer, batch_idx)):
            return
        text = describe(row, pl_module)
        now = time.monotonic()
        if "val/loss" in row:
            self.print(text)
            self.shown_at = now
        elif self.in_place:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r" + text[:width] + "\x1b[K")
            self.line_open = True
        elif now - self.shown_at >= PLAIN_LINE_SECONDS or row["step"] == 1:
            self.print(text)
            self.shown_at = now

    def on_train_end(self, trainer: L.Trainer, pl_module: LanguageModel) -> None:
        if self.line_open:
            self.print()


def describe(row: dict[str, Any], module: LanguageModel) -> str:
    """A row as a line of text."""
    total, speed = module.total_steps, row["tokens_per_second"]
    parts = [f"step {row['step']:>{len(f'{total:,}') if total else 1},}" + (f"/{total:,}" if total else "")]
    parts.append("loss not finite" if row["train/loss"] is None else f"loss {row['train/loss']:.4f}")
    if row.get("val/loss") is not None:
        parts.append(f"val {row['val/loss']:.4f} ({row['val/bits_per_byte']:.3f} bits/byte)")
    parts.append(f"lr {row['lr']:.2e}")
    if speed:
        parts.append(f"{speed:,.0f} tok/s")
        parts.append(f"MFU {row['mfu']:.1%}" if row["mfu"] is not None else "MFU n/a")
        left = []
        if total:
            left.append((total - row["step"]) * module.config.batch_tokens / speed)
        if module.config.trainer.max_minutes:
            left.append(60 * module.config.trainer.max_minutes - row["seconds"])
        parts.append(f"ETA {duration(max(0.0, min(left)))}")
    return "  ".join(parts)
