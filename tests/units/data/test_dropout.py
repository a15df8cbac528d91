"""BPE-dropout: other tokens of the same text, a pure function of seed and place, and none in the last steps."""

import numpy as np
import pytest

from minigpt.data.tokenizer import build_tokenizer
from minigpt.data.tokenizers.dropout import FIRST_PART, BPEDropout

WORDS = "the others gather there; whether other feathers are together, their mother rather bathes"
STARTS = np.arange(0, 160, 8)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("bpe", vocab_size=300, train=[[f"{WORDS}\n".encode()]])


@pytest.fixture(scope="module")
def windows(tokenizer):
    tokens = np.array([*tokenizer.encode(WORDS), tokenizer.eot] * 40)
    return np.stack([tokens[start : start + 17] for start in STARTS])


def test_windows_hold_the_same_text_in_other_tokens_but_for_the_last_steps(tokenizer, windows):
    dropout, last = BPEDropout(tokenizer, 0.3, seed=5, steps=100), round(FIRST_PART * 100)
    new = dropout(last - 1, windows, STARTS)
    assert new.shape == windows.shape
    for rows in zip(windows, new, strict=True):
        text, same = (b"".join(tokenizer.token_bytes(token) or b"<end>" for token in row) for row in rows)
        assert text.startswith(same[: len(text)])
    assert (new != windows).any(1).mean() > 0.8
    assert (dropout(last, windows, STARTS) == windows).all()


def test_it_follows_from_the_seed_and_the_place_alone(tokenizer, windows):
    def encoded(seed, rows=slice(None), moved=0):
        return BPEDropout(tokenizer, 0.3, seed, steps=100)(0, windows[rows], STARTS[rows] + moved)

    assert (encoded(5, slice(3, 5)) == encoded(5)[3:5]).all()  # as on another device, or after a kill
    assert (encoded(6) != encoded(5)).any()
    assert (encoded(5, moved=1) != encoded(5)).any()


def test_with_all_merges_words_are_encoded_as_ever(tokenizer):
    plain = BPEDropout(tokenizer, 0.0, seed=5, steps=100)
    for word in WORDS.split(" "):
        tokens = (tokenizer.eot, *tokenizer.encode(f" {word}"))
        assert plain.variant(tokens, 3) == tokens
