"""How a vocabulary is learned: from how much of a text, and until Ctrl-C."""

import re
import signal
import time

import pytest

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.preparing.prepare import prepare
from minigpt.data.tokenizer import build_tokenizer
from minigpt.data.tokenizers.bpe import PATTERN, train_ranks
from tests.conftest import printed
from tests.promises.test_tokenizers import MARKED_BPE


def test_few_tokens_are_learned_from_a_part_of_a_large_text(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n} and {n * n}\n" for n in range(60_000)))
    data = DataConfig("text", str(tmp_path / "a.txt"), dir=str(tmp_path / "data"))
    prepared, said = printed(lambda: prepare(data, TokenizerConfig("bpe", vocab_size=300)))
    learned = re.search(r"learning 300 tokens from (\d+),\d+ bytes of training text", "\n".join(said))
    assert 400 < int(learned[1]) < 800  # about 2,048 bytes for each token
    assert prepared.tokenizer.vocab_size == 300


def test_learning_obeys_a_signal():
    def text():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        for number in range(2000):
            read.append(number)
            time.sleep(0.001)
            yield b"hello there " * 10_000

    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    read = []
    try:
        with pytest.raises(KeyboardInterrupt):
            train_ranks(300, [text()])
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert len(read) < 2000  # all of the text takes minutes


def test_a_word_with_vowel_signs_is_one_token_of_a_text_that_has_many():
    assert [len(MARKED_BPE.encode(word)) for word in (" दोनों", " बैलों", " اَلْعَرَبِيَّةُ")] == [1, 1, 1]
    with_few = [["naïve e\u0301 ❤️ ".encode() * 9, b"and many plain words " * 99]]
    assert build_tokenizer("bpe", vocab_size=300, train=with_few).pattern == PATTERN
    emoji = build_tokenizer("bpe", vocab_size=300, train=[["in 2024 ❤️ ".encode() * 99]])
    assert len(emoji.encode(" 2024")) == 1  # the marks of emoji don't count
