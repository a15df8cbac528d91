"""Megabytes per second of each tokenizer, on the Python standard library's own source."""

import time
from typing import Any

from minigpt.benchmark.bench import Bench, Section
from minigpt.benchmark.table import counted, markdown, spread
from minigpt.config.schema import DataConfig
from minigpt.data.corpus import find_corpus
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.data.tokenizers.gpt2 import gpt2_is_here

TEXT_BYTES = 4_000_000  # of the corpus
VOCAB_SIZE = 2048  # of bpe: the default of minigpt train
HEADS = ["tokenizer", "bytes a token", "MB/s", "min", "max", "back, MB/s", "min", "max"]


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time encoding and decoding, and how long bpe takes to learn.

    Args:
        task: rounds.

    Returns:
        learning (seconds), and rows: [tokenizer, bytes per token, [MB/s to tokens], [MB/s back]]. gpt2 is there if its
        vocabulary is on this machine.
    """
    text = read_text()
    began = time.perf_counter()
    bpe = build_tokenizer("bpe", vocab_size=VOCAB_SIZE, train=[[text]])
    learning = time.perf_counter() - began
    found = [build_tokenizer("byte"), build_tokenizer("char", alphabet=sorted(set(text.decode()))), bpe]
    found += [build_tokenizer("gpt2")] if gpt2_is_here() else []
    rows: list[list[Any]] = []
    for tokenizer in found:
        there_and_back(tokenizer, text)  # what is made once
        times = [there_and_back(tokenizer, text) for _ in range(task["rounds"])]
        speeds = [[len(text) / 1e6 / each[way] for each in times] for way in (0, 1)]
        rows.append([tokenizer.name, len(text) / len(tokenizer.encode_bytes(text)), *speeds])
    return {"learning": learning, "rows": rows}


def read_text() -> bytes:
    """The first part of the embedded corpus, cut at a line's end."""
    text = b""
    for document in find_corpus(DataConfig()).documents():
        text += b"".join(document.chunks)
        if len(text) >= TEXT_BYTES:
            break
    return text[: text.rindex(b"\n", 0, TEXT_BYTES) + 1]


def there_and_back(tokenizer: Tokenizer, text: bytes) -> tuple[float, float]:
    """Seconds to encode a text and to decode it."""
    began = time.perf_counter()
    tokens = tokenizer.encode_bytes(text)
    middle = time.perf_counter()
    decoded = tokenizer.decode_bytes(tokens)
    ended = time.perf_counter()
    assert decoded == text, f"{tokenizer.name} does not give its text back"
    return middle - began, ended - middle


def tokenization(bench: Bench) -> Section:
    """Measure the tokenizers in one process and on one thread: they get no more in training."""
    rounds = bench.plan.config.rounds
    found = bench.measure("tokenizing.measure", threads=1, rounds=rounds)
    rows = [
        [name, f"{size:.2f}", *spread(to).cells(1), *spread(back).cells(1)] for name, size, to, back in found["rows"]
    ]
    text = (
        f"{markdown(HEADS, rows)}\n\n{TEXT_BYTES / 1e6:.1f} MB of Python's standard library, one process, "
        f"{counted(rounds, 'round')}. Learning {VOCAB_SIZE:,} bpe tokens from it took {found['learning']:.1f} s."
    )
    return Section("Tokenization", text, found)
