"""The progress line: what is known, the most important first, whole in a narrow terminal."""

import io
import os
import shutil

import pytest

from minigpt.config.schema import TrainConfig
from minigpt.training.outputs import Screen, describe, duration

ROW = {
    "step": 840, "train/loss": 3.604, "lr": 5e-4, "seconds": 12.0, "tokens_per_second": 21_450.0, "mfu": None,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(row, columns, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    screen = Screen(TrainConfig(), 2000, Terminal())
    screen.show(row)
    return screen.stream.getvalue().strip("\r").removesuffix("\x1b[K")


def test_what_is_not_known_is_left_out():
    assert "  ".join(describe(ROW, TrainConfig(), 2000)) == (
        "step   840/2,000  42%  loss 3.6040  ETA 0:03:42  21,450 tok/s  lr 5.00e-04".replace("0:03", "3")
    )
    first = describe(ROW | {"tokens_per_second": None}, TrainConfig(), 2000)
    assert not any(part.startswith(("ETA", "MFU")) or "tok/s" in part for part in first)
    assert describe(ROW | {"mfu": 0.123}, TrainConfig(), 2000)[-1] == "MFU 12.3%"


@pytest.mark.parametrize("columns", [30, 42, 60, 120])
def test_a_narrow_terminal_shows_whole_parts_and_the_time_left_before_rates(columns, monkeypatch):
    line, parts = shown(ROW, columns, monkeypatch), describe(ROW, TrainConfig(), 2000)
    assert len(line) < columns
    assert line in ["  ".join(parts[:count]) for count in range(1, len(parts) + 1)]
    assert ("ETA" in line) == (columns >= 60)


def test_a_run_that_only_time_limits_knows_when_it_ends():
    config = TrainConfig()
    config.trainer.max_minutes = 2.0
    assert "ETA 1:48" in describe(ROW, config, None)


def test_hours():
    assert [duration(seconds) for seconds in (0, 59.6, 3723)] == ["0:00", "1:00", "1:02:03"]
