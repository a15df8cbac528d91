"""The sentences that a comparison ends with."""

import pytest

from minigpt.compare.command import LEVEL, plus_minus, scope, verdict
from minigpt.compare.interval import Difference

UNIT = "nats per token"


def test_the_better_side_is_named_whichever_it_is():
    found = Difference(-0.012, (3, 3), seed_variance=1e-6, text_variance=1e-6, blocks=100)
    half = found.half_width(LEVEL)
    assert verdict("A", "B", found, unit=UNIT) == f"B is better by 0.0120 +- {half:.4f} nats per token"
    turned = Difference(0.012, (3, 3), 1e-6, 1e-6, 100)
    assert verdict("A", "B", turned, unit=UNIT).startswith("A is better by 0.0120 +- ")


def test_what_would_tell_is_said():
    assert "seeds a side would" in verdict("A", "B", Difference(0.01, (2, 2), 1e-4, 1e-6, 100), unit=UNIT)
    assert "more seeds alone would not" in verdict("A", "B", Difference(0.001, (2, 2), 1e-4, 1e-4, 100), unit=UNIT)
    text = verdict("A", "B", Difference(0.01, (1, 1), None, 1e-4, 100), unit=UNIT)
    assert text == "cannot tell: B - A = 0.010 +- 0.020 nats per token; about 3.9 times as much text would"
    assert "all but equal" in verdict("A", "B", Difference(1e-6, (1, 1), None, 1e-4, 100), unit=UNIT)
    assert verdict("A", "B", Difference(0.0, (1, 1), None, 0.0, 100), unit=UNIT).endswith("they are equal")


def test_one_seed_says_so():
    assert "these two checkpoints, not the settings" in scope(Difference(0.1, (1, 1), None, 1e-4, 9), "A", "B")
    assert "B has one seed: it is taken to scatter as the other does" in scope(
        Difference(0.1, (3, 1), 1e-4, 1e-4, 9), "A", "B"
    )
    assert "judges the settings" in scope(Difference(0.1, (2, 2), 1e-4, 1e-4, 9), "A", "B")


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [(0.0123, 0.0042, "0.0123 +- 0.0042"), (1.5, 0.3, "1.500 +- 0.300"), (-2e-6, 3e-7, "-0.00000200 +- 0.00000030")],
)
def test_as_many_places_as_mean_something(value, half, text):
    assert plus_minus(value, half) == text
