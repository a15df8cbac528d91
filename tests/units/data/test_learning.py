"""Ctrl-C while a vocabulary is learned."""

import signal
import time

import pytest

from minigpt.data.tokenizers.bpe import train_ranks


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
