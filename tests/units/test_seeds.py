"""Seeds: a function of their inputs, different for neighbours, by splitmix64 on whole numbers and on arrays."""

import numpy as np
import torch

from minigpt.seeds import GOLDEN, MASK_64, fold, scramble
from minigpt.training.step import seed_device

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


def test_seeds_differ_for_any_neighbouring_seed_batch_and_rank():
    seeds = {fold(seed, batch, rank) for seed in range(13) for batch in range(29) for rank in range(3)}
    assert len(seeds) == 13 * 29 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_values_never_change():
    assert fold(1337, 0, 0) == 3269731276231068113


def test_seeding_a_step_gives_torchs_own_numbers_and_leaves_nothing_behind():
    torch.manual_seed(71)
    wanted = torch.rand(5)
    queued = len(torch.cuda._queued_calls)
    for _ in range(3):
        seed_device(71, torch.device("cpu"))
        assert torch.equal(torch.rand(5), wanted)
    assert len(torch.cuda._queued_calls) == queued  # torch.manual_seed adds one, with its stack trace, each time
