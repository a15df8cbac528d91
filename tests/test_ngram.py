"""The n-gram yardstick against a slow twin that keeps its counts in dictionaries."""

import math
import time
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt import demo
from minigpt.demo import ngram_bits_per_byte


class Twin:
    def __init__(self, train: bytes, order: int):
        self.order = order
        self.counts: Counter[bytes] = Counter()
        self.followers: defaultdict[bytes, list[int]] = defaultdict(list)
        for length in range(order + 1):
            for i in range(length, len(train)):
                self.counts[train[i - length : i + 1]] += 1
                self.followers[train[i - length : i]].append(train[i])

    def probability(self, context: bytes, byte: int) -> float:
        followers = self.followers[context]
        lower = self.probability(context[1:], byte) if context else 1 / 256
        kinds = len(set(followers))
        if not followers:
            return lower
        return (self.counts[context + bytes([byte])] + kinds * lower) / (len(followers) + kinds)

    def bits_per_byte(self, val: bytes) -> float:
        bits = [-math.log2(self.probability(val[max(0, i - self.order) : i], val[i])) for i in range(len(val))]
        return sum(bits) / len(val)


SMALL = st.text(st.sampled_from("ab c"), min_size=1, max_size=60).map(str.encode) | st.binary(min_size=1, max_size=20)


@given(train=SMALL, val=SMALL, order=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_it_equals_the_twin(train, val, order):
    assert ngram_bits_per_byte(train, val, order) == pytest.approx(Twin(train, order).bits_per_byte(val), rel=1e-12)


@pytest.mark.parametrize("context", [b"", b"a", b"ab", b"abr", b"zzz"])
def test_probabilities_sum_to_one(context):
    train = b"abracadabra abracadabra"
    tables = [demo._table(train, length) for length in range(4)]
    last = [demo._probabilities(tables, context + bytes([byte]))[-1] for byte in range(256)]
    assert sum(last) == pytest.approx(1, abs=1e-12)
    assert min(last) > 0


def test_long_text_is_scored_in_pieces_with_the_same_result(monkeypatch):
    train, val = bytes(range(7)) * 30, bytes(range(5)) * 41
    whole = ngram_bits_per_byte(train, val)
    monkeypatch.setattr(demo, "_PIECE", 17)
    assert ngram_bits_per_byte(train, val) == pytest.approx(whole, rel=1e-12)


def test_no_training_text_costs_eight_bits():
    assert ngram_bits_per_byte(b"", b"xyz") == 8.0


def test_a_megabyte_takes_seconds():
    text = (np.random.default_rng(0).zipf(1.3, 1_200_000) % 90 + 32).astype(np.uint8).tobytes()
    begun = time.perf_counter()
    ngram_bits_per_byte(text[:1_000_000], text[1_000_000:])
    assert time.perf_counter() - begun < 10
