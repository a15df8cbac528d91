"""Made tokens: the same for everybody, with something to learn in them."""

import numpy as np

from minigpt.benchmark import tokens as made
from minigpt.benchmark.tokens import made_tokens, make_tokens
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepare import prepare


def test_tokens_follow_from_the_seed_and_hold_something_to_learn():
    tokens = made_tokens(100_000, 65)
    assert np.array_equal(tokens, made_tokens(100_000, 65))
    assert not np.array_equal(tokens, made_tokens(100_000, 65, seed=2))
    counts = np.bincount(tokens, minlength=65) / len(tokens)
    alone = -(counts * np.log(counts)).sum()
    pairs = np.bincount(tokens[:-1].astype(int) * 65 + tokens[1:], minlength=65 * 65) / (len(tokens) - 1)
    both = -(pairs[pairs > 0] * np.log(pairs[pairs > 0])).sum()
    assert both - alone < 0.7 * alone  # the token before says much about the next


def test_a_run_finds_the_characters_where_it_prepares_them(tmp_path):
    prepared = make_tokens(tmp_path, 65)
    assert prepared.tokenizer.vocab_size == 65
    data = DataConfig(name="text", source=str(tmp_path / "text.txt"), dir=str(tmp_path / "data"))
    found = prepare(data, TokenizerConfig(name="char"), say=lambda _: None)
    assert found.fingerprint == prepared.fingerprint


def test_a_run_finds_the_planted_tokens_of_a_large_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "LARGE_TOKENS", 60_000)
    prepared = make_tokens(tmp_path, 50257)
    data = DataConfig(name="text", source=str(tmp_path / "text.txt"), dir=str(tmp_path / "data"))
    found = prepare(data, TokenizerConfig(name="byte"), say=lambda _: None)
    assert found.tokenizer.vocab_size == 50257
    assert (found.fingerprint, len(found.train), len(found.val)) == (prepared.fingerprint, 54_000, 6_000)
