"""The sampling loop with a mock model: its logits are a hash of the tokens it sees, so they are compared bit by bit."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.faults import UserFault
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.generate import Reader, TextInProgress, generate, window_start

V = 13


class MockCache:
    """Remembers each row's tokens."""

    def __init__(self, rows):
        self.rows = [[] for _ in range(rows)] if isinstance(rows, int) else rows

    def set_lengths(self, lengths):
        self.rows = [row[:length] for row, length in zip(self.rows, lengths, strict=True)]

    def select(self, rows):
        return MockCache([list(self.rows[row]) for row in rows])

    def put(self, rows, part):
        for row, new in zip(rows, part.rows, strict=True):
            self.rows[row] = list(new)

    def join(self, part):
        self.rows += part.rows

    def leave(self, row):
        self.rows[row] = self.rows[-1]
        del self.rows[-1]


class MockModel:
    """Each sequence of tokens has its own logits; what it was shown is written down."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.contexts = []
        self.tokens_read = 0

    def __call__(self, tokens, lengths, cache):
        self.tokens_read += tokens.numel()
        logits = []
        for row, (new, length) in enumerate(zip(tokens.tolist(), lengths, strict=True)):
            context = (cache.rows[row] if cache else []) + new[:length]
            if cache:
                assert len(cache.rows[row]) + len(new) <= self.block_size
                cache.rows[row] = cache.rows[row] + new
            assert len(context) <= self.block_size
            self.contexts.append(context)
            random_numbers = random.Random(str(context))
            logits.append([random_numbers.gauss(0, 2) for _ in range(V)])
        return torch.tensor(logits)


def generated(model, prompts, *, block_size=6, cached=True, num_samples=1, eot=None, **options):
    """The texts, written to their ends."""
    options = SamplingOptions(**{"max_new_tokens": 9, "temperature": 1.0, **options})
    ends = frozenset() if eot is None else frozenset({eot})
    texts = [TextInProgress(list(prompt), options, number, ends) for prompt in prompts for number in range(num_samples)]
    for _ in generate(Reader(model, block_size, MockCache if cached else None), texts):
        pass
    return texts


def write(prompts, *, block_size=6, **options):
    """The written tokens of each text."""
    return [text.written for text in generated(MockModel(block_size), prompts, block_size=block_size, **options)]


some_prompts = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=11), min_size=1, max_size=4)
block_sizes = st.integers(1, 9)


@given(length=st.integers(1, 60), block_size=st.integers(1, 12))
def test_window_start_is_the_rule_applied_token_by_token(length, block_size):
    start = 0
    for so_far in range(1, length + 1):
        if so_far - start > block_size:
            start = so_far - max(block_size // 2, 1)
    assert window_start(length, block_size) == start


@given(prompts=some_prompts, block_size=block_sizes, seed=st.integers(0, 99), n=st.integers(1, 3))
def test_the_cache_changes_nothing(prompts, block_size, seed, n):
    options = {"block_size": block_size, "seed": seed, "num_samples": n, "max_new_tokens": 25}
    assert write(prompts, cached=True, **options) == write(prompts, cached=False, **options)


@given(prompts=some_prompts, block_size=block_sizes, cached=st.booleans(), data=st.data())
def test_each_prompt_is_written_as_if_alone_and_in_any_order(prompts, block_size, cached, data):
    options = {"block_size": block_size, "cached": cached, "eot": 3, "max_new_tokens": 12, "repetition_penalty": 1.3}
    together = write(prompts, **options)
    assert together == [write([prompt], **options)[0] for prompt in prompts]
    order = data.draw(st.permutations(range(len(prompts))))
    assert write([prompts[index] for index in order], **options) == [together[index] for index in order]


@given(prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=9), block_size=block_sizes, first=st.integers(1, 15))
def test_writing_in_two_sittings_is_writing_in_one(prompt, block_size, first):
    options = {"block_size": block_size, "repetition_penalty": 1.5}
    whole = write([prompt], max_new_tokens=20, **options)[0]
    begun = write([prompt], max_new_tokens=first, **options)[0]
    assert begun + write([prompt + begun], max_new_tokens=20 - first, **options)[0] == whole


def test_temperature_zero_is_the_likeliest_token_every_time():
    text = [2, 4]
    model = MockModel(50)
    for _ in range(9):
        text.append(int(model(torch.tensor([text]), [len(text)], None).argmax()))
    assert write([[2, 4]], block_size=50, temperature=0.0, seed=1) == [text[2:]]
    assert write([[2, 4]], block_size=50, temperature=0.0, seed=2) == [text[2:]]
    assert write([[2, 4]], block_size=50, top_k=1, seed=2) == [text[2:]]


@pytest.mark.parametrize("cached", [True, False])
def test_the_model_sees_the_window_and_nothing_else(cached):
    model = MockModel(4)
    text = [1, 2, 3]
    text += generated(model, [text], max_new_tokens=8, block_size=4, cached=cached)[0].written
    wanted = [text[0:3], text[0:4], text[3:5], text[3:6], text[3:7], text[6:8], text[6:9], text[6:10]]
    reading = [] if not cached else [text[0:2], text[3:4], text[6:7]]  # before the newest token
    assert [context for context in model.contexts if context not in reading] == wanted
    assert all(context in model.contexts for context in reading)


def test_with_the_cache_a_token_is_read_once_until_the_window_moves():
    model = MockModel(64)
    generated(model, [[1] * 10], max_new_tokens=40, block_size=64)
    assert model.tokens_read == 10 + 39


def test_the_samples_of_one_prompt_share_its_reading():
    model = MockModel(64)
    generated(model, [[1] * 10, [2] * 10], max_new_tokens=1, num_samples=7, block_size=64)
    assert model.tokens_read == 2 * 9 + 2 * 7


def test_samples_end_one_by_one():
    first = write([[1, 2, 3]], max_new_tokens=3, seed=3)[0]
    assert first[2] not in first[:2]
    options = SamplingOptions(max_new_tokens=9, temperature=1.0, seed=3)
    texts = [TextInProgress(prompt, options, ends=frozenset({first[2]})) for prompt in ([1, 2, 3], [5], [8, 8])]
    calls = []
    for text, token, logits in generate(Reader(MockModel(6), 6, MockCache), texts):
        calls.append((texts.index(text), token))
        assert logits.shape == (V,)
        if text is texts[1]:
            text.ended = "stopped"
    assert [text.ended for text in texts[:2]] == ["end of text", "stopped"]
    assert [len(text.written) for text in texts[:2]] == [2, 1]
    assert texts[2].ended == ("length" if len(texts[2].written) == 9 else "end of text")
    for index, text in enumerate(texts):
        assert [token for at, token in calls if at == index] == text.written
        assert first[2] not in text.written


def test_a_text_that_starts_from_end_of_text_does_not_end_at_once():
    def forward(tokens, lengths, cache):
        return torch.arange(V, dtype=torch.float32).repeat(len(tokens), 1)  # the last token is the likeliest

    options = SamplingOptions(max_new_tokens=3, temperature=0.0)
    texts = [TextInProgress([*prompt, V - 1], options, ends=frozenset([V - 1])) for prompt in ([], [4])]
    list(generate(Reader(forward, 8, None), texts))
    assert [text.written for text in texts] == [[V - 2], []]


def test_repeated_tokens_are_penalised_in_the_prompt_too():
    model = MockModel(6)

    def negative(tokens, lengths, cache):
        return model(tokens, lengths, cache) - 20  # below 0, so a penalty of 1e9 is a prohibition

    for text in generated(negative, [[3]], max_new_tokens=12, num_samples=20, repetition_penalty=1e9):
        assert sorted(text.tokens) == list(range(V))  # each of the other 12 tokens once


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_are_named(bad):
    def broken(tokens, lengths, cache):
        return torch.tensor([[0.0, bad, 1.0]])

    with pytest.raises(UserFault, match="non-finite weights"):
        generated(broken, [[1]], cached=False)
