"""Made text: the same for everybody, with something to learn in it."""

import numpy as np
import pytest

from minigpt.benchmark import tokens as made
from minigpt.benchmark.tokens import made_tokens, write_text
from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare


def test_tokens_follow_from_the_seed_and_hold_something_to_learn():
    tokens = made_tokens(100_000, 65)
    assert np.array_equal(tokens, made_tokens(100_000, 65))
    assert not np.array_equal(tokens, made_tokens(100_000, 65, seed=2))
    counts = np.bincount(tokens, minlength=65) / len(tokens)
    alone = -(counts * np.log(counts)).sum()
    pairs = np.bincount(tokens[:-1] * 65 + tokens[1:], minlength=65 * 65) / (len(tokens) - 1)
    both = -(pairs[pairs > 0] * np.log(pairs[pairs > 0])).sum()
    assert both - alone < 0.7 * alone  # the token before says much about the next


@pytest.mark.parametrize("vocab_size", [65, 50257])
def test_a_run_makes_a_token_of_each_character(vocab_size, tmp_path, monkeypatch):
    monkeypatch.setattr(made, "COUNTS", {vocab_size: 60_000})
    write_text(tmp_path / "text.txt", vocab_size)
    data = DataConfig(name="text", source=str(tmp_path / "text.txt"), dir=str(tmp_path / "data"))
    found = prepare(data, TokenizerConfig(name="char"), say=lambda _: None)
    assert found.tokenizer.vocab_size == vocab_size
    tokens = np.concatenate([split.tokens(0, len(split)) for split in (found.train, found.val)])
    assert np.array_equal(tokens, made_tokens(60_000, vocab_size))
