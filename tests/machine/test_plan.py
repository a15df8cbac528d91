"""The words of the plan that is printed before a run."""

import pytest

from minigpt.machine.plan import number_of


@pytest.mark.parametrize(("count", "words"), [(0, "0 layers"), (1, "1 layer"), (2, "2 layers"), (1200, "1,200 layers")])
def test_one_thing_is_no_plural(count, words):
    assert number_of(count, "layer") == words
