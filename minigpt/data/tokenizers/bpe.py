"""tokenizer=bpe: byte-level byte-pair encoding, learned from the training text.

A vocabulary is a list of byte strings; a token's place is its id and its rank: of all neighbours that
can merge, those that make the token of lowest rank merge first.
"""

import atexit
import itertools
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tiktoken
from numpy.typing import NDArray

from minigpt.data.tokenizers.scheme import END_OF_TEXT, GPT2_BORDER, RUN_BYTES, SINGLE_BYTES, Scheme, runs
from minigpt.faults import INTERRUPTED

# GPT-2's split pattern in the equivalent form that tiktoken runs without backtracking.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

# How the byte-level BPE files of GPT-2 and the trainer write bytes as printable characters: bytes that are
# printable Latin-1 stand for themselves, the others for U+0100, U+0101, ... The order is GPT-2's byte ids.
_PRINTABLE = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
GPT2_BYTES = _PRINTABLE + [b for b in range(256) if b not in _PRINTABLE]
CHARACTER_TO_BYTE = {chr(b) if b in _PRINTABLE else chr(256 + i - len(_PRINTABLE)): b for i, b in enumerate(GPT2_BYTES)}

_INVALID = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as Python's surrogateescape shows them


class BPEEncoder:
    """Merges by rank, with tiktoken.

    Args:
        tokens: the vocabulary in the order of rank, which is also each token's number; or the number of each token.
        pattern: splits text into words first.
        border: where the pattern lets text be cut (see `runs`).
        limit: bytes per run at most.
        added: words that are tokens of their own, cut out before all else, and their tokens.
        nfc: bring the text between those words into Unicode's form NFC first.

    Raises:
        ValueError: a byte has no token.
    """

    def __init__(
        self,
        tokens: Sequence[bytes] | Mapping[bytes, int],
        pattern: str = PATTERN,
        *,
        border: re.Pattern[bytes] = GPT2_BORDER,
        limit: int = RUN_BYTES,
        added: Mapping[str, int] = MappingProxyType({}),
        nfc: bool = False,
    ):
        ranks = dict(tokens) if isinstance(tokens, Mapping) else {token: rank for rank, token in enumerate(tokens)}
        missing = [byte for byte in SINGLE_BYTES if byte not in ranks]
        if missing:
            raise ValueError(f"byte 0x{missing[0].hex().upper()} has no token; all 256 bytes must be there")
        self._single = [ranks[byte] for byte in SINGLE_BYTES]
        self._border, self._limit, self._added, self._nfc = border, limit, added, nfc
        longest_first = sorted(added, key=len, reverse=True)
        self._words = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if added else None
        # Without a special token of its own tiktoken takes a path that is 1.6 times as slow. It is never allowed in a
        # text, so that text stays text.
        special = {END_OF_TEXT: max(ranks.values()) + 1}
        self._encoding = tiktoken.Encoding(
            "minigpt", pat_str=grouped(pattern), mergeable_ranks=ranks, special_tokens=special
        )

    def runs(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        return runs(chunks, self._limit, self._border)

    def encode_chunks(self, chunks: Iterable[bytes]) -> Iterator[NDArray[np.integer]]:
        return map(self._encode, self.runs(chunks))

    def _encode(self, run: bytes) -> NDArray[np.integer]:
        try:
            return self._encode_text(run.decode())
        except UnicodeDecodeError:
            pass
        # tiktoken's text route loses bytes that are no UTF-8, so these go in as byte tokens between the valid parts.
        tokens: list[int] = []
        for number, part in enumerate(_INVALID.split(run.decode("utf-8", "surrogateescape"))):
            if number % 2:
                tokens += map(self._single.__getitem__, part.encode("utf-8", "surrogateescape"))
            else:
                tokens += self._encode_text(part).tolist()
        return np.array(tokens)

    def _encode_text(self, text: str) -> NDArray[np.integer]:
        if self._words is None:
            return self._encode_piece(text)
        parts = enumerate(self._words.split(text))
        return np.concatenate([[self._added[part]] if n % 2 else self._encode_piece(part) for n, part in parts])

    def _encode_piece(self, text: str) -> NDArray[np.integer]:
        text = unicodedata.normalize("NFC", text) if self._nfc else text
        return self._encoding.encode_to_numpy(text, disallowed_special=())


def grouped(pattern: str) -> str:
    """Return a split pattern in the form that tiktoken's regex engine runs fastest; it splits every text alike.

    The engine runs a group without look-around and possessive repetition as a finite automaton, and all else step by
    step, with backtracking. So what stands before the look-ahead becomes one such group: with GPT-2's pattern
    tokenizing as a whole is 1.6 times as fast. No alternative in it matches more text by giving back a repetition, so
    possessive repetitions make no difference.

    Args:
        pattern: PATTERN, or one of the PATTERNS of minigpt/data/tokenizers/file.py.
    """
    words, ahead, spaces = pattern.partition(r"|\s+(?!")
    greedy = words.replace("++", "+").replace("?+", "?")
    return f"(?:{greedy}){ahead}{spaces}"


def train_ranks(size: int, documents: Iterable[Iterable[bytes]]) -> list[bytes]:
    """Train byte-level BPE with GPT-2's split pattern.

    The Hugging Face trainer is used: it is maintained by a team, has wheels for every platform, and learns
    10 MB in two seconds. Only its merges are kept, encoding is tiktoken's. Bytes that are no UTF-8 take no part.

    Args:
        size: tokens wanted, the 256 bytes included.
        documents: each the chunks of one text.

    Returns:
        At most `size` byte strings, the 256 bytes first; fewer if the text has no more pairs to merge.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # splits by GPT-2's pattern
    alphabet = list(CHARACTER_TO_BYTE)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, special_tokens=[])
    text = itertools.chain.from_iterable(map(_valid_text, documents))
    _run_interruptibly(lambda parts: learner.train_from_iterator(parts, trainer), text)
    numbers = learner.get_vocab()
    tokens = [bytes(CHARACTER_TO_BYTE[c] for c in token) for token in sorted(numbers, key=numbers.__getitem__)]
    return SINGLE_BYTES + [token for token in tokens if len(token) > 1]


def _run_interruptibly(work: Callable[[Iterable[str]], object], text: Iterable[str]) -> None:
    """Call `work` with a text in a thread and wait for it: no signal is handled inside the trainer, but while waiting.

    An interrupted trainer gets no more text, and ends with the process at the latest. A normal exit of Python won't do
    then: it unwinds the stack of a thread that comes back to Python, which aborts the process inside of the trainer.
    """
    failures: list[BaseException] = []
    stopped, ended = threading.Event(), threading.Event()

    def run() -> None:
        try:
            work(itertools.takewhile(lambda _: not stopped.is_set(), text))
        except BaseException as error:
            failures.append(error)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        ended.wait()  # after an interrupted join Python would believe that the thread has ended
    except BaseException as error:
        stopped.set()
        ended.wait(0.2)
        atexit.register(_leave, ended, getattr(error, "exit_code", INTERRUPTED))
        raise
    if failures:
        raise failures[0]


def _leave(ended: threading.Event, code: int) -> None:
    """End the process at once if the library's thread is still running."""
    if not ended.is_set():
        sys.stdout.flush()
        os._exit(code)


def _valid_text(document: Iterable[bytes]) -> Iterator[str]:
    """Yield the parts of a document that are UTF-8."""
    for run in runs(document):
        yield from filter(None, _INVALID.split(run.decode("utf-8", "surrogateescape"))[::2])


BPE = Scheme(
    BPEEncoder,
    vocabulary=lambda vocab_size, alphabet, train: train_ranks(vocab_size - 1, train),
    min_vocab_size=257,
    pattern=PATTERN,
)
