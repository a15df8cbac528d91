"""tokenizer=bpe: byte-level byte-pair encoding, learned from the training text; tokenizer=gpt2: GPT-2's vocabulary.

A vocabulary is a list of byte strings; a token's place is its id and its rank: of all neighbours that
can merge, those that make the token of lowest rank merge first.
"""

import itertools
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tiktoken
import tiktoken.load
from numpy.typing import NDArray

from minigpt.data.tokenizers.scheme import BLANK_BORDER, END_OF_TEXT, SINGLE_BYTES, Scheme, byte_tokens, runs
from minigpt.faults import UserFault

# GPT-2's split pattern in the equivalent form that tiktoken runs without backtracking.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# The same once more: tiktoken's engine runs a group without look-around and possessive repetition as a finite
# automaton, which makes encoding as a whole 1.6 times as fast.
GROUPED = r"""(?:'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$)|\s+(?!\S)|\s"""
# Qwen3.5's split pattern, which llama.cpp knows, too: a combining mark stays with its letter. GPT-2's cuts Hindi, Thai
# and vowelled Arabic at each vowel sign, into two to three times as many tokens.
MARKED = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKED_FROM = 0.02  # of the characters of a text are combining marks: it is learned with MARKED

# How the byte-level BPE files of GPT-2 and the trainer write bytes as printable characters: bytes that are
# printable Latin-1 stand for themselves, the others for U+0100, U+0101, ... The order is GPT-2's byte ids.
_PRINTABLE = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
GPT2_BYTES = _PRINTABLE + [b for b in range(256) if b not in _PRINTABLE]
CHARACTER_TO_BYTE = {chr(b) if b in _PRINTABLE else chr(256 + i - len(_PRINTABLE)): b for i, b in enumerate(GPT2_BYTES)}

GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
GPT2_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

_INVALID = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as Python's surrogateescape shows them


class BPEEncoder:
    """Merges by rank, with tiktoken. The vocabulary says by which pattern text is split into words first."""

    def __init__(self, tokens: Sequence[bytes]):
        self.pattern = MARKED if any(map(_joins_mark, tokens)) else PATTERN
        ranks = {token: rank for rank, token in enumerate(tokens)}
        self._single = byte_tokens(tokens)
        # Without a special token of its own tiktoken takes a path that is 1.6 times as slow. It is never allowed in a
        # text, so that text stays text.
        special = {END_OF_TEXT: len(tokens)}
        pattern = MARKED if self.pattern == MARKED else GROUPED
        self._encoding = tiktoken.Encoding("minigpt", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def runs(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        return runs(chunks, border=BLANK_BORDER) if self.pattern == MARKED else runs(chunks)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.integer]]:
        for part in itertools.chain.from_iterable(map(text_and_bytes, self.runs(chunks))):
            if isinstance(part, str):
                yield self._encoding.encode_to_numpy(part, disallowed_special=())
            else:  # no UTF-8: tiktoken's text route loses such bytes
                yield np.array([self._single[byte] for byte in part])


def _joins_mark(token: bytes) -> bool:
    """Return whether a token holds a letter and a combining mark, which GPT-2's pattern keeps apart."""
    kinds = "" if token.isascii() else {unicodedata.category(c)[0] for c in token.decode(errors="ignore")}
    return "L" in kinds and "M" in kinds


def text_and_bytes(data: bytes) -> list[str | bytes]:
    """Cut bytes into the parts that are UTF-8, as text, and the others."""
    try:
        return [data.decode()]
    except UnicodeDecodeError:
        parts = enumerate(_INVALID.split(data.decode("utf-8", "surrogateescape")))
        return [part.encode("utf-8", "surrogateescape") if number % 2 else part for number, part in parts if part]


def train_ranks(size: int, documents: Iterable[Iterable[bytes]]) -> list[bytes]:
    """Train byte-level BPE with the pattern that fits the text; return at most `size` byte strings, 256 bytes first.

    They are fewer if the text has no more pairs to merge. Hugging Face's trainer learns 10 MB in two seconds; only its
    merges are kept, and tiktoken encodes. Bytes that are not UTF-8 are left out.
    """
    from tokenizers import Tokenizer, models, trainers

    runs_of = (run for document in documents for run in runs(document))
    pieces = [part for run in runs_of for part in text_and_bytes(run) if isinstance(part, str)]
    counts = Counter(itertools.chain.from_iterable(piece for piece in pieces if not piece.isascii()))
    del counts["\ufe0f"]  # of emoji
    marks = sum(number for character, number in counts.items() if unicodedata.category(character)[0] == "M")
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = splitter(MARKED if marks > MARKED_FROM * sum(map(len, pieces)) else PATTERN)
    alphabet = list(CHARACTER_TO_BYTE)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, special_tokens=[])
    stopped = threading.Event()  # the trainer looks at no signal: it works in a thread, and Ctrl-C ends its text
    text = itertools.takewhile(lambda _: not stopped.is_set(), pieces)
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(learner.train_from_iterator, text, trainer).result()
        finally:
            stopped.set()
    numbers = learner.get_vocab()
    tokens = [bytes(CHARACTER_TO_BYTE[c] for c in token) for token in sorted(numbers, key=numbers.__getitem__)]
    return SINGLE_BYTES + [token for token in tokens if len(token) > 1]


def splitter(pattern: str | None) -> Any:
    """Return the part of the library `tokenizers` that splits text by a pattern, or not, into bytes as characters."""
    from tokenizers import Regex, pre_tokenizers

    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == PATTERN)
    if pattern != MARKED:
        return as_bytes
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(MARKED), "isolated"), as_bytes])


def gpt2_ranks() -> list[bytes]:
    """Return GPT-2's 50,256 tokens, from the file that tiktoken caches, and fetches when it is missing."""
    try:
        content = tiktoken.load.read_file_cached(GPT2_URL, GPT2_SHA256).decode()
    except (OSError, ValueError) as error:
        wrong = f"tokenizer=gpt2 needs GPT-2's merges, and {GPT2_URL} can't be fetched ({error})"
        remedy = "Name tiktoken's cache folder in TIKTOKEN_CACHE_DIR, or use tokenizer=bpe"
        raise UserFault(f"{wrong}. {remedy}") from None
    merges = [line.split() for line in content.split("\n")[1:-1]]  # the first line is a version, the last one empty
    return [bytes([b]) for b in GPT2_BYTES] + [bytes(CHARACTER_TO_BYTE[c] for c in a + b) for a, b in merges]


BPE = Scheme(BPEEncoder, lambda size, _, train: train_ranks(size - 1, train), min_vocab_size=257)
GPT2 = Scheme(BPEEncoder, lambda *_: gpt2_ranks())
