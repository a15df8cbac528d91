"""What a pointer to the last place of the same bytes saves of an n-gram model's bits."""

import numpy as np
import pytest

from minigpt.data.measures.repeats import LENGTHS, WINDOW, saved_by_copying


def slow(text: bytes, p: np.ndarray) -> float:
    """The same, a byte at a time, with the best c of a fine grid."""
    hits: dict[int, list[tuple[float, bool]]] = {}
    for place in range(len(text)):
        for length in sorted(LENGTHS, reverse=True):
            suffix = text[place - length : place]
            last = text.rfind(suffix, 0, place - 1) if place > length else -1
            if last >= 0 and place - (last + length) <= WINDOW:
                hits.setdefault(length, []).append((p[place], text[last + length] == text[place]))
                break
    grid = np.linspace(0, 0.999, 1000)[:, None]
    saved = 0.0
    for pairs in hits.values():
        q, right = (np.array(values) for values in zip(*pairs, strict=True))
        saved += np.log2(np.where(right, grid / q, 0.0) + 1 - grid).sum(1).max()
    return saved / -np.log2(p).sum()


def test_it_is_the_best_mixture_with_the_last_place_within_reach():
    generator = np.random.default_rng(0)
    words = [bytes(generator.integers(97, 123, 7, dtype=np.uint8)) for _ in range(60)]
    text = b" ".join(words[n] for n in generator.zipf(1.5, 700) % 60)
    p = generator.uniform(0.01, 0.6, len(text))
    assert saved_by_copying(text, p) == pytest.approx(slow(text, p), rel=0.02)


@pytest.mark.parametrize(("period", "low", "high"), [(400, 0.8, 1.0), (2 * WINDOW, 0.0, 0.001)])
def test_only_what_recurs_within_the_window_counts(period, low, high):
    text = bytes(np.random.default_rng(1).integers(0, 256, period, dtype=np.uint8)) * (16_000 // period)
    assert low <= saved_by_copying(text, np.full(len(text), 1 / 256)) <= high


def test_a_text_shorter_than_the_shortest_repetition_saves_nothing():
    assert saved_by_copying(b"ab", np.array([0.5, 0.5])) == 0.0
