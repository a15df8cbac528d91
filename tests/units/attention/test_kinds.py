"""The scores of heads that do one thing only, and of one that attends evenly."""

import pytest
import torch

from minigpt.attention.kinds import first_token, induction, previous_token

T, PERIOD = 12, 6


def head(places):
    """Weights of a head whose query i attends to places(i) alone."""
    return torch.nn.functional.one_hot(torch.tensor([places(i) for i in range(T)]), T).float()


BEFORE = head(lambda i: max(i - 1, 0))
FIRST = head(lambda i: 0)
AFTER_THE_EARLIER = head(lambda i: i - PERIOD + 1 if i >= PERIOD else i)
EVEN = torch.tril(torch.ones(T, T)).softmax(-1).tril()
EVEN = EVEN / EVEN.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("weights", "wanted"), [(BEFORE, (1, 0, 0)), (FIRST, (0, 1, 0)), (AFTER_THE_EARLIER, (0, 0, 1))]
)
def test_a_head_with_one_purpose_has_one_score(weights, wanted):
    found = (previous_token(weights), first_token(weights), induction(weights, PERIOD))
    assert [float(each) for each in found] == list(wanted)


def test_a_head_that_attends_evenly_has_the_mean_of_one_over_i():
    even = sum(1 / (i + 1) for i in range(2, T)) / (T - 2)
    batch = torch.stack([EVEN, EVEN])
    assert previous_token(batch).tolist() == pytest.approx([even, even])
    assert first_token(batch).tolist() == pytest.approx([even, even])
    assert induction(batch, PERIOD).tolist() == pytest.approx([sum(1 / (i + 1) for i in range(PERIOD, T)) / PERIOD] * 2)
