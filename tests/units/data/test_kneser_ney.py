"""The n-gram model against a slow twin that keeps its counts in dictionaries."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.data.measures.kneser_ney import FALLBACK, KneserNey


class Twin:
    """Modified Kneser-Ney as Chen and Goodman write it."""

    def __init__(self, train: bytes, order: int):
        self.order = order
        text = bytes(order - 1) + train
        grams = [text[i : i + order] for i in range(len(train))]
        self.counts: dict[int, Counter[bytes]] = {order: Counter(grams)}
        for length in range(order - 1, 0, -1):
            self.counts[length] = Counter(gram[1:] for gram in self.counts[length + 1])
        self.discounts = {length: self._discounts(counts) for length, counts in self.counts.items()}
        self.followers: defaultdict[bytes, list[int]] = defaultdict(list)
        for counts in self.counts.values():
            for gram, count in counts.items():
                self.followers[gram[:-1]].append(count)

    def _discounts(self, counts):
        n = [0, *(sum(count == wanted for count in counts.values()) for wanted in (1, 2, 3, 4))]
        if not all(n[1:]):
            return (0, *FALLBACK)
        y = n[1] / (n[1] + 2 * n[2])
        found = (0, *(c - (c + 1) * y * n[c + 1] / n[c] for c in (1, 2, 3)))
        return found if all(0 < d <= c for c, d in enumerate(found[1:], 1)) else (0, *FALLBACK)

    def probability(self, context: bytes, byte: int) -> float:
        length = len(context) + 1
        lower = self.probability(context[1:], byte) if context else 1 / 256
        followers, discounts = self.followers[context], self.discounts[length]
        if not followers:
            return lower
        count = self.counts[length][context + bytes([byte])]
        left_over = sum(discounts[min(each, 3)] for each in followers)
        return (count - discounts[min(count, 3)] + left_over * lower) / sum(followers)

    def probabilities(self, val: bytes) -> list[float]:
        text, reach = bytes(self.order - 1) + val, self.order - 1
        return [self.probability(text[i : i + reach], text[i + reach]) for i in range(len(val))]


SMALL = st.text(st.sampled_from("ab c"), min_size=1, max_size=120).map(str.encode) | st.binary(min_size=1, max_size=20)


@given(train=SMALL, val=SMALL, order=st.integers(1, 8))
def test_it_equals_the_twin(train, val, order):
    assert KneserNey(train, order).probabilities(val) == pytest.approx(Twin(train, order).probabilities(val), rel=1e-9)


@pytest.mark.parametrize("context", [b"", b"a", b"ab", b"abr", b"zzz", b"a cadab"])
def test_probabilities_sum_to_one(context):
    model = KneserNey(b"abracadabra abracadabra, a cadaver " * 9)
    last = [model.probabilities(context + bytes([byte]))[-1] for byte in range(256)]
    assert sum(last) == pytest.approx(1, abs=1e-9)
    assert min(last) > 0


def test_no_training_text_costs_eight_bits():
    assert KneserNey(b"").probabilities(b"xyz").tolist() == [2**-8] * 3
