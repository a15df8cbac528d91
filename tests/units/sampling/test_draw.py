"""Random numbers as a function of (seed, sample, position), and the draw from them."""

import itertools
import math

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from minigpt.sampling.draw import sample_tokens, uniform


def draw(logits, numbers):
    return sample_tokens(logits.double(), torch.tensor(numbers, dtype=torch.float64)).tolist()


def test_uniform_is_uniform_and_each_argument_matters():
    numbers = [uniform(*place) for place in itertools.product(range(20), range(20), range(20))]
    assert len(set(numbers)) == len(numbers)
    counts = torch.histc(torch.tensor(numbers), bins=16, min=0, max=1)
    chi_square = float(((counts - 500) ** 2 / 500).sum())
    assert chi_square < 37.7  # 15 degrees of freedom: exceeded by chance once in 1000; the numbers are fixed
    columns = torch.tensor(numbers, dtype=torch.float64).reshape(20, -1)  # one row per seed
    correlation = torch.corrcoef(columns) - torch.eye(20)
    assert correlation.abs().max() < 0.2


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.integers(0, 2**40))
def test_uniform_is_below_one(seed, sample, position):
    assert 0 <= uniform(seed, sample, position) < 1


@given(
    st.lists(st.one_of(st.floats(-30, 5), st.just(-math.inf)), min_size=1, max_size=12).filter(
        lambda row: max(row) > -math.inf
    ),
    st.floats(0, 1, exclude_max=True),
)
@example([0.0, 0.0, 0.0, -math.inf], 1 - 2**-53)
@example([0.1, 0.7, -0.3, -1.2, 0.45, -math.inf], 1 - 2**-53)
def test_draw_is_the_first_token_past_the_number(row, number):
    probabilities = torch.tensor(row, dtype=torch.float64).softmax(-1).tolist()
    cumulative = list(itertools.accumulate(probabilities))
    past = [token for token, value in enumerate(cumulative) if value > number * cumulative[-1]]
    assert draw(torch.tensor([row], dtype=torch.float64), [number]) == past[:1]
