"""Each filter against a slow twin that works on a list of probabilities."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.sampling import filters
from minigpt.sampling.filters import SamplingOptions, filter_logits

rows = st.integers(1, 9).flatmap(
    lambda V: st.lists(
        st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=V, max_size=V),  # coarse, so that many tie
        min_size=1,
        max_size=3,
    )
)


def double(logits):
    return torch.tensor(logits, dtype=torch.float64)


def kept(logits):
    return [{token for token, value in enumerate(row) if value > -math.inf} for row in logits.tolist()]


def by_likelihood(row):
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


@given(rows, st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest_and_ties(logits, k):
    for row, found in zip(logits, kept(filters.top_k(double(logits), k)), strict=True):
        assert found == {token for token in range(len(row)) if sum(other > row[token] for other in row) < k}
        assert len(found) >= min(k, len(row))


@given(rows, st.floats(0.0001, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    for row, found in zip(logits, kept(filters.top_p(double(logits), p)), strict=True):
        probabilities = double(row).softmax(-1).tolist()
        total, expected = 0.0, set()
        for token in by_likelihood(row):
            if total < p - 1e-12:
                expected.add(token)
            elif total < p + 1e-12:  # decided by rounding
                expected |= {token} & found
            total += probabilities[token]
        assert found == expected


@given(rows, st.floats(0.001, 1.0))
def test_min_p_keeps_what_is_likely_enough(logits, p):
    for row, found in zip(logits, kept(filters.min_p(double(logits), p)), strict=True):
        ratios = [math.exp(value - max(row)) for value in row]
        assert {token for token, ratio in enumerate(ratios) if ratio > p + 1e-12} <= found
        assert found <= {token for token, ratio in enumerate(ratios) if ratio > p - 1e-12}
        assert max(range(len(row)), key=row.__getitem__) in found


@given(rows, st.floats(0.25, 4.0), st.data())
def test_repetition_penalty_makes_seen_tokens_less_likely_once(logits, penalty, data):
    seen = data.draw(st.lists(st.booleans(), min_size=len(logits[0]), max_size=len(logits[0])))
    result = filters.repetition_penalty(double(logits), torch.tensor([seen] * len(logits)), penalty).tolist()
    for row, new in zip(logits, result, strict=True):
        for value, penalised, was_seen in zip(row, new, seen, strict=True):
            expected = value / penalty if value > 0 else value * penalty
            assert penalised == (expected if was_seen else value)
            if was_seen and penalty > 1 and value:
                assert penalised < value


@given(rows, st.floats(0.01, 100.0))
def test_temperature_divides(logits, value):
    expected = (double(logits) / value).softmax(-1)
    assert torch.allclose(filters.temperature(double(logits), value).softmax(-1), expected, atol=1e-12)


@given(rows)
def test_temperature_zero_keeps_the_lowest_of_the_likeliest(logits):
    found = kept(filters.temperature(double(logits), 0.0))
    assert found == [{row.index(max(row))} for row in logits]


def test_top_p_edges():
    logits = double([[0.5, 0.25, 0.125, 0.125]]).log()
    assert kept(filters.top_p(logits, 1.0)) == [{0, 1, 2, 3}]
    assert kept(filters.top_p(logits, 0.4)) == [{0}]
    assert kept(filters.top_p(logits, 0.6)) == [{0, 1}]
    assert kept(filters.top_p(logits, 0.8)) == [{0, 1, 2}]  # of two equals the lower id
    assert kept(filters.top_p(logits, 1e-300)) == [{0}]
    peaked = double([[0.0, -1e4, -1e4]])  # the rest has probability 0
    assert kept(filters.top_p(peaked, 1 - 1e-16)) == [{0}]
    assert kept(filters.top_p(double([[-math.inf, 2.0, -math.inf]]), 0.5)) == [{1}]


def test_top_p_with_and_without_the_whole_order(monkeypatch):
    """Where the likeliest tokens don't hold p, and where they do; values are coarse, so that many tie."""
    logits = (torch.randn(40, 300, generator=torch.Generator().manual_seed(1)) * 8).round().double() / 4
    for p in (0.05, 0.5, 0.9, 0.999):
        whole = filters.top_p(logits, p)
        with monkeypatch.context() as patch:
            patch.setattr(filters, "NUCLEUS", 30)
            assert torch.equal(filters.top_p(logits, p), whole)


def test_the_order_of_the_filters():
    logits = double([[2.0, 1.9, 1.0, 0.0]])
    seen = torch.tensor([[True, False, False, False]])
    options = SamplingOptions(temperature=0.5, top_k=2, top_p=0.8, repetition_penalty=4.0)
    # Penalised: 0.5, 1.9, 1, 0. Halved temperature: 1, 3.8, 2, 0. Two kept: tokens 1 and 2 at 0.858 and 0.142.
    assert kept(filter_logits(logits, seen, options)) == [{1}]
    # Were the nucleus taken before top-k, temperature or penalty, more would be left.
    assert kept(filter_logits(logits, None, options)) == [{0, 1}]
