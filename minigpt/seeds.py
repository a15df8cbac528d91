"""The random-looking bijection of 64-bit words behind the data order, dropout's seeds and the drawing of tokens.

Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators" (splitmix64).
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

MASK_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the step from one word to the next

Words = TypeVar("Words", int, NDArray[np.uint64])


def scramble(x: Words) -> Words:
    """Map 64-bit words one to one; an array is not changed in place."""
    word: Any = x
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK_64
    return word ^ (word >> 31)


def fold(*numbers: int) -> int:
    """Mix integers into one 63-bit seed, so that dropout follows from (seed, micro-batch, rank): nothing to save."""
    state = 0
    for number in numbers:
        state = scramble((state + number + GOLDEN) & MASK_64)
    return state >> 1
