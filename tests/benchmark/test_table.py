"""Medians, ratios and tables, on numbers that can be checked by eye."""

import pytest

from minigpt.benchmark.table import Spread, markdown, ratios, spread
from minigpt.benchmark.training import BARE, HEADS, OURS, rows_of


def test_spread_is_median_ends_and_quartiles():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 1.0, 5.0, 2.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 0.0)
    assert spread([7.0, 9.0]).median == 8.0


def test_ratios_are_taken_within_a_round_before_their_median():
    # The machine was slow in round 2: the ratio of medians (30 / 20 = 1.5) would say something else.
    found = ratios([20.0, 90.0, 30.0], [10.0, 30.0, 20.0])
    assert (found.median, found.low, found.high) == (2.0, 1.5, 3.0)
    assert found.text() == "2.00 (1.50 to 3.00)"


def test_ratios_of_different_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError):
        ratios([1.0, 2.0], [1.0])


def test_the_table_holds_times_speed_and_ratios():
    found = {
        OURS: [{"ms": 10.0, "began": 1.0, "first_step_at": 4.0}, {"ms": 12.0, "began": 1.0, "first_step_at": 5.0}],
        BARE: [{"ms": 30.0, "began": 1.0, "first_step_at": None}, {"ms": 24.0, "began": 1.0, "first_step_at": None}],
    }
    heads, rule, ours, theirs = markdown(HEADS, rows_of(found, batch_tokens=768)).splitlines()
    assert len({len(line) for line in (heads, rule, ours, theirs)}) == 1
    cells = [cell.strip() for cell in theirs.strip("|").split("|")]
    assert cells == [BARE, "27.00", "24.00", "30.00", "3.00", "28,444", "", "2.50 (2.00 to 3.00)"]
    assert [cell.strip() for cell in ours.strip("|").split("|")][5:] == ["69,818", "3.5", "1"]


def test_markdown_is_as_wide_as_its_widest_cell():
    assert markdown(["a", "long head"], [["wide cell", "1"]]) == (
        "| a         | long head |\n| --------- | --------: |\n| wide cell |         1 |"
    )
