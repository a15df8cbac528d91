"""Mixtures: exact weights, exact epochs of each source, a pure function of (seed, step)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.batch import MicroBatches
from minigpt.data.order import CYCLE, deal, epoch_windows, quotas
from minigpt.data.preparing.prepare import short_names
from minigpt.data.shards import TokenSplit, mix_splits
from minigpt.data.tokenizer import build_tokenizer

weights = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6).filter(lambda found: min(found) / sum(found) > 1e-4)


def mixture(shares=(0.7, 0.2, 0.1)):
    """Three sources, whose tokens are numbers that say whose they are."""
    byte, parts = build_tokenizer("byte"), {}
    for number, (name, size) in enumerate(zip("abc", (103, 41, 66), strict=True)):
        tokens = np.arange(1000 * number, 1000 * number + size)
        parts[name] = TokenSplit("train", byte, [tokens], 3 * size, f"{number + 1:064x}"[::-1])
    return mix_splits(parts, dict(zip("abc", shares, strict=True)))


@given(weights)
def test_a_cycle_holds_whole_numbers_within_one_of_the_shares(found):
    whole = quotas(found)
    assert sum(whole) == CYCLE
    for quota, weight in zip(whole, found, strict=True):
        assert abs(quota / CYCLE - weight / sum(found)) < 1e-4 / 6


@settings(max_examples=20)
@given(weights, st.integers(0, 10**12))
def test_up_to_any_sample_each_source_has_had_its_share_and_counts_its_own(found, first):
    whole = quotas(found)
    sources, numbers = deal(np.arange(first, first + 3000, dtype=np.uint64), whole)
    for source, quota in enumerate(whole):
        mine = numbers[sources == source].astype(np.float64)
        if len(mine):
            assert (np.diff(mine) == 1).all()
            places = first + np.flatnonzero(sources == source)
            assert np.abs(mine + 0.5 - places * (quota / CYCLE)).max() <= len(whole)


@pytest.mark.parametrize("T", [4, 7])
def test_no_window_of_a_source_comes_twice_in_its_epoch_and_none_reaches_into_another(T):
    mixed = mixture()
    batches = [mixed.window_starts(step, seed=3, block_size=T, sequences=8) for step in range(60)]
    windows = mixed.windows(np.concatenate(batches), T + 1)
    assert (np.diff(windows, axis=1) == 1).all()
    for number, part in enumerate(mixed.parts.values()):
        W = epoch_windows(len(part), T)
        own = [row[0] - 1000 * number for row in windows.tolist() if row[0] // 1000 == number]
        assert len(own) >= W
        for start in range(0, len(own) - W + 1, W):
            epoch = own[start : start + W]
            assert len({place // T for place in np.array(epoch) - min(epoch)}) == W


def test_a_batch_is_a_function_of_seed_and_step_alone_however_it_is_dealt():
    mixed = mixture()

    def batches(**layout):
        return MicroBatches(mixed, seed=3, block_size=5, **layout)

    alone = batches(micro_batch=6, accumulate=1)[10**6].tokens.tolist()
    parts = [
        batches(micro_batch=1, accumulate=3, world_size=2, rank=rank)[3 * 10**6 + part].tokens.tolist()[0]
        for part in range(3)
        for rank in range(2)
    ]
    assert parts == alone
    assert batches(micro_batch=6, accumulate=1)[10**6 + 1].tokens.tolist() != alone
    assert MicroBatches(mixed, seed=4, block_size=5, micro_batch=6, accumulate=1)[10**6].tokens.tolist() != alone


def test_a_mixture_is_its_parts_one_behind_the_other():
    mixed = mixture()
    assert mixed.tokens(0, 210).tolist() == np.concatenate(mixed.arrays).tolist()
    assert mixed.bytes == 630
    assert mixture((0.7, 0.2, 0.1)).fingerprint == mixture((0.7, 0.1, 0.2)).fingerprint  # of the tokens


def test_sources_have_short_names_of_their_own():
    sources = dict.fromkeys(["texts/books/", "code.jsonl.gz", "https://host/a/code.jsonl.gz?x=1", "/", "stdlib"], 1.0)
    parts = {"a/part.txt": 0.3, "b/part.txt": 0.3, "c/part-2.txt": 0.4}
    assert list(short_names(parts)) == ["1-part", "2-part", "3-part-2"]
    assert list(short_names(sources)) == ["1-books", "2-code.jsonl", "3-code.jsonl", "4-source", "5-stdlib"]
    assert list(short_names({"texts/books/": 1.0, "stdlib": 1.0})) == ["books", "stdlib"]
