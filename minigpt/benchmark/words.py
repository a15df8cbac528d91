"""Megabytes per second of each tokenizer, one process, on the Python standard library's own source."""

import time
from collections.abc import Callable
from typing import Any

from minigpt.config.schema import DataConfig
from minigpt.data.corpus import find_corpus
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.data.tokenizers.gpt2 import gpt2_is_here

TEXT_BYTES = 4_000_000  # of the corpus
VOCAB_SIZE = 2048  # of bpe: the default of scripts/train.py


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Encoding and decoding, round by round, and how long bpe takes to learn.

    Args:
        task: rounds.

    Returns:
        bytes, vocab_size (of bpe), learning (seconds), notes, and rows: [tokenizer, bytes per token,
        [MB/s to tokens], [MB/s back]].
    """
    text = read_text()
    began = time.perf_counter()
    bpe = build_tokenizer("bpe", vocab_size=VOCAB_SIZE, train=[[text]])
    learning = time.perf_counter() - began
    alphabet = sorted(set(text.decode()))
    found = [build_tokenizer("byte"), build_tokenizer("char", alphabet=alphabet), bpe]
    notes = []
    if gpt2_is_here():
        found.append(build_tokenizer("gpt2"))
    else:
        notes.append(
            "gpt2 is left out: its vocabulary is not on this machine (TIKTOKEN_CACHE_DIR may say where it is)."
        )
    for tokenizer in found:
        there_and_back(tokenizer, text)  # what is made once
    times: dict[str, list[tuple[float, float]]] = {tokenizer.name: [] for tokenizer in found}
    for _ in range(task["rounds"]):
        for tokenizer in found:
            times[tokenizer.name].append(there_and_back(tokenizer, text))
    rows = [
        [
            tokenizer.name,
            len(text) / len(tokenizer.encode_bytes(text)),
            *([len(text) / 1e6 / pair[way] for pair in times[tokenizer.name]] for way in (0, 1)),
        ]
        for tokenizer in found
    ]
    return {"bytes": len(text), "vocab_size": VOCAB_SIZE, "learning": learning, "rows": rows, "notes": notes}


def read_text() -> bytes:
    """The first part of the embedded corpus, cut at a line's end."""
    parts: list[bytes] = []
    for document in find_corpus(DataConfig()).documents():
        parts += document.chunks
        if sum(map(len, parts)) >= TEXT_BYTES:
            break
    text = b"".join(parts)[:TEXT_BYTES]
    return text[: text.rindex(b"\n") + 1]


def there_and_back(tokenizer: Tokenizer, text: bytes) -> tuple[float, float]:
    """Seconds to encode and to decode it."""
    forth, tokens = _timed(lambda: tokenizer.encode_bytes(text))
    back, decoded = _timed(lambda: tokenizer.decode_bytes(tokens))
    assert decoded == text, f"{tokenizer.name} does not give its text back"
    return forth, back


def _timed(do: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = do()
    return time.perf_counter() - began, result
