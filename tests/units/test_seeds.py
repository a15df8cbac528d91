"""splitmix64, on whole numbers and on arrays."""

import numpy as np

from minigpt.seeds import GOLDEN, MASK_64, scramble

PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # the test vector for 1234567


def test_numbers_are_those_published():
    words = [(1234567 + count * GOLDEN) & MASK_64 for count in (1, 2, 3)]
    assert [scramble(word) for word in words] == PUBLISHED


def test_arrays_give_the_same_and_are_left_alone():
    words = np.array([1234567], dtype=np.uint64) + np.arange(1, 4, dtype=np.uint64) * np.uint64(GOLDEN)
    before = words.copy()
    assert scramble(words).tolist() == PUBLISHED
    assert scramble(words).dtype == np.uint64
    assert (words == before).all()
