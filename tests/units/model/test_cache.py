"""The KV cache gives the same numbers as reading everything again, also for rows of different lengths."""

from functools import partial

import pytest
import torch

from minigpt.model import cache as kv
from minigpt.model.loss import autocast
from tests.units.model.spread import spread_gpt

V = 37
BLOCK_SIZE = 19
tiny_gpt = partial(spread_gpt, vocab_size=V, std=0.2, n_layer=2, n_head=3, n_embd=33, block_size=BLOCK_SIZE)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(autouse=True, params=[256, 3], ids=["whole", "growing"])
def first_columns(request, monkeypatch):
    monkeypatch.setattr("minigpt.model.cache.FIRST_COLUMNS", request.param)


def new_cache(model, rows):
    cache = model.new_cache(rows)
    assert cache.keys.shape == cache.values.shape == (2, rows, 3, min(BLOCK_SIZE, kv.FIRST_COLUMNS), 11)
    assert cache.keys.dtype == model.token_embedding.weight.dtype
    return cache


def some_tokens(rows, T, seed=0):
    return torch.randint(V, (rows, T), generator=torch.Generator().manual_seed(seed))


def assert_close(a, b):
    assert a.dtype == b.dtype
    assert (a - b).abs().max() < TOLERANCE[a.dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", ["explicit", "fused"])
@torch.no_grad()
def test_rows_of_different_lengths_go_on_as_if_alone(dtype, kernel):
    model = tiny_gpt(dtype=dtype, kernel=kernel)
    lengths, tokens = [5, 1, 8], some_tokens(3, 8)
    more = some_tokens(3, 11, seed=1)
    cache = new_cache(model, 3)
    first = model(tokens, cache=cache)
    cache.set_lengths(lengths)
    second = torch.cat([model(part, cache=cache) for part in more.split([1, 2, 1, 6, 1], dim=1)], dim=1)
    assert cache.lengths == [16, 12, BLOCK_SIZE]
    for row, length in enumerate(lengths):
        alone = model(torch.cat([tokens[row, :length], more[row]])[None])[0]
        assert_close(first[row, :length], alone[:length])
        assert_close(second[row], alone[length:])


@torch.no_grad()
def test_rows_of_different_lengths_are_read_under_autocast_too():
    model, tokens = tiny_gpt(), some_tokens(2, 8)
    cache = new_cache(model, 2)
    with autocast("cpu", "bf16"):
        model(tokens[:, :6], cache=cache)
        cache.set_lengths([6, 4])
        logits = model(torch.stack([tokens[0, 6:], tokens[1, 4:6]]), cache=cache)
        assert (logits[1] - model(tokens)[1, 4:6]).abs().max() < 0.1
