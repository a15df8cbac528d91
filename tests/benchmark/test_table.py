"""Medians, ratios and tables, on numbers that can be checked by eye."""

import pytest

from minigpt.benchmark.bench import HEADS
from minigpt.benchmark.table import markdown, number, spread


@pytest.mark.parametrize(
    ("value", "text"), [(0.0057144, "0.005714"), (1.0, "1"), (999.96, "1000"), (1234.5, "1,234"), (5.9e6, "5,900,000")]
)
def test_a_number_has_the_digits_that_it_is_good_for(value, text):
    assert number(value) == text


def test_spread_is_median_and_ends():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == "3 (1 to 5)"
    assert spread([7.0, 9.5]) == "8.25 (7 to 9.5)"


def measured(*times, first=None):
    return [{"ms": ms, "tokens": 768, "first": first} for ms in times]


def test_ratios_are_taken_within_a_round_before_their_median(bench_of):
    # The machine was slow in round 2: the ratio of medians (30 / 20 = 1.5) would say something else.
    found = {"ours": measured(10.0, 30.0, 20.0, first=3.5), "theirs": measured(20.0, 90.0, 30.0)}
    section = bench_of(precision="bf16", compile=True).section("Title", found, ["note"], baseline=lambda _: "ours")
    ours, theirs = section.rows
    assert len(ours) == len(theirs) == len(HEADS)
    assert ours == ["ours", "20 (10 to 30)", "38,400", "3.5", "1"]
    assert theirs == ["theirs", "30 (20 to 90)", "25,600", "", "2 (1.5 to 3)"]
    assert section.summary == "Title c0 bf16 compiled, times as long: theirs 2 (1.5 to 3)"
    assert not section.void


def test_ratios_of_different_numbers_of_rounds_are_refused(bench_of):
    found = {"ours": measured(1.0), "theirs": measured(2.0, 3.0)}
    with pytest.raises(ValueError):
        bench_of().section("Title", found, [], baseline=lambda _: "ours")


def test_a_speed_without_a_matching_curve_is_void(bench_of):
    section = bench_of().section("Title", {"ours": measured(1.0)}, [], baseline=lambda _: "ours", void=True)
    assert section.void
    assert section.summary.startswith("VOID: the curves differ. Title c0 fp32")


def test_markdown_is_as_wide_as_its_widest_cell():
    assert markdown(["a", "long head"], [["wide cell", "1"]]) == (
        "| a         | long head |\n| --------- | --------- |\n| wide cell | 1         |"
    )
