"""The order of windows: every window of an epoch once, for any sizes, at any step, on every platform."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.order import epoch_windows
from minigpt.data.shards import TokenSplit
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault

BYTE = build_tokenizer("byte")


def window_starts(step: int, *, n_tokens: int, **place) -> np.ndarray:
    """Of a split with so many tokens."""
    tokens = np.broadcast_to(np.uint8(0), n_tokens)
    return TokenSplit("train", BYTE, [tokens], n_tokens, "").window_starts(step, **place)


def epochs(n: int, *, n_tokens: int, block_size: int, sequences: int, seed: int) -> np.ndarray:
    """Starts of the first n epochs, (n, W), put together from batches."""
    W = int(epoch_windows(np.array(n_tokens), block_size))
    keys = {"n_tokens": n_tokens, "block_size": block_size, "sequences": sequences, "seed": seed}
    batches = [window_starts(step, **keys) for step in range(-(-n * W // sequences))]
    return np.concatenate(batches)[: n * W].reshape(n, W)


@given(
    block_size=st.integers(1, 40),
    extra=st.integers(1, 700),
    sequences=st.integers(1, 90),
    seed=st.integers(-(2**70), 2**70),
)
def test_every_window_of_an_epoch_comes_once(block_size, extra, sequences, seed):
    n_tokens = block_size + extra
    for starts in epochs(3, n_tokens=n_tokens, block_size=block_size, sequences=sequences, seed=seed):
        starts = np.sort(starts)
        assert (np.diff(starts) == block_size).all()
        assert 0 <= starts[0] < block_size
        assert starts[-1] + block_size + 1 <= n_tokens


@given(step=st.integers(0, 10**9), parts=st.sampled_from([2, 3, 7]))
@settings(max_examples=30)
def test_samples_do_not_depend_on_the_size_of_the_batch(step, parts):
    keys = {"seed": 5, "n_tokens": 3_001, "block_size": 16}
    whole = window_starts(step, sequences=parts * 11, **keys)
    pieces = [window_starts(step * parts + part, sequences=11, **keys) for part in range(parts)]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))


def test_the_order_is_the_same_on_every_machine_and_in_every_version():
    first = window_starts(0, seed=1337, n_tokens=1_003_854, block_size=64, sequences=6)
    late = window_starts(10**9, seed=1337, n_tokens=10**12, block_size=1024, sequences=3)
    assert first.dtype == np.int64
    assert first.tolist() == [597061, 53061, 944773, 501509, 178885, 320773]
    assert late.tolist() == [599953523374, 512307715758, 339739609774]


def test_it_is_shuffled_differently_per_epoch_and_seed():
    keys = {"n_tokens": 20_000, "block_size": 10, "sequences": 50}
    one, two = epochs(2, seed=1, **keys)
    other = epochs(1, seed=2, **keys)[0]
    for a, b in ((one, two), (one, other)):
        assert (a // 10 == b // 10).mean() < 0.01
    assert (one // 10 == np.arange(len(one))).mean() < 0.01
    assert abs(np.corrcoef(one, np.arange(len(one)))[0, 1]) < 0.1
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.1


def test_offsets_are_uniform_over_epochs_and_seeds():
    # Two windows per epoch: the smaller start is the offset. Chi-squared with 15 degrees of freedom: 37.7 is p = 0.001.
    for starts in (
        epochs(4000, n_tokens=49, block_size=16, sequences=64, seed=3).min(axis=1),
        np.array([epochs(1, n_tokens=49, block_size=16, sequences=2, seed=seed).min() for seed in range(2000)]),
    ):
        counts = np.bincount(starts, minlength=16)
        expected = len(starts) / 16
        assert ((counts - expected) ** 2 / expected).sum() < 37.7


def test_too_few_tokens_are_refused_with_what_would_fit():
    with pytest.raises(UserFault) as fault:
        window_starts(0, seed=1, n_tokens=100, block_size=128, sequences=4)
    assert str(fault.value) == (
        "train split has 100 tokens; model.block_size=128 needs at least 129. Use model.block_size <= 99 or more text"
    )
    with pytest.raises(UserFault, match=r"train split has 1 tokens.*Use more text"):
        window_starts(0, n_tokens=1, seed=1, block_size=8, sequences=1)
