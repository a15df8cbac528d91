"""BPE vocabularies as tiktoken ranks: trained on a corpus, or GPT-2's own from tiktoken's cache.

A vocabulary is a list of byte strings; a token's place is its id and its rank: of all neighbours that
can merge, those that make the token of lowest rank merge first.
"""

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from minigpt.data.chunking import runs
from minigpt.data.download import download
from minigpt.faults import UserFault
from minigpt.rundir.files import write_file

VOCAB_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

# How the byte-level BPE files of GPT-2 and the trainer write bytes as printable characters: bytes that are
# printable Latin-1 stand for themselves, the others for U+0100, U+0101, ... The order is GPT-2's byte ids.
_PRINTABLE = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
_GPT2_BYTES = _PRINTABLE + [b for b in range(256) if b not in _PRINTABLE]
_CHARACTER_TO_BYTE = {
    chr(b) if b in _PRINTABLE else chr(256 + i - len(_PRINTABLE)): b for i, b in enumerate(_GPT2_BYTES)
}


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

    alphabet = {byte: character for character, byte in _CHARACTER_TO_BYTE.items()}
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # splits by GPT-2's pattern
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=list(alphabet.values()), show_progress=False, special_tokens=[]
    )
    learner.train_from_iterator(itertools.chain.from_iterable(map(_valid_text, documents)), trainer)
    by_id = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(_CHARACTER_TO_BYTE[c] for c in token) for token, _ in by_id]
    merged = [token for token in tokens if len(token) > 1]
    return [bytes([b]) for b in range(256)] + list(dict.fromkeys(merged))


def gpt2_ranks() -> list[bytes]:
    """GPT-2's 50,256 tokens, from the file tiktoken caches, which is fetched when it is missing.

    Raises:
        UserFault: the file is not there and can't be had within 2 s.
    """
    return _parse_gpt2(_gpt2_file().decode())


def gpt2_is_here() -> bool:
    """Whether tiktoken's cache has its file, so that nothing need be fetched."""
    return _gpt2_path().is_file()


def _gpt2_path() -> Path:
    return _tiktoken_cache() / hashlib.sha1(VOCAB_URL.encode()).hexdigest()


def _gpt2_file() -> bytes:
    path = _gpt2_path()
    problem = "is missing"
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == VOCAB_SHA256:
            return content
        problem = f"is damaged (its SHA-256 is not {VOCAB_SHA256})"
    except OSError:
        pass
    try:
        content = download(VOCAB_URL, VOCAB_SHA256)
    except ConnectionError as error:
        raise UserFault(
            f"tokenizer=gpt2 needs GPT-2's merges: {path} {problem}, and {VOCAB_URL} can't be fetched ({error}). "
            f"Fetch that file (vocab.bpe) on a machine with network and put it at {path}, or name the folder that "
            f"holds tiktoken's cache in TIKTOKEN_CACHE_DIR, or use a vocabulary trained on your own text: tokenizer=bpe"
        ) from None
    with contextlib.suppress(OSError):  # a cache that can't be written costs a download next time, no more
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    return content


def _tiktoken_cache() -> Path:
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    return Path(folder) if folder else Path(tempfile.gettempdir()) / "data-gym-cache"


def _parse_gpt2(vocab_bpe: str) -> list[bytes]:
    tokens = [bytes([b]) for b in _GPT2_BYTES]
    for line in vocab_bpe.split("\n")[1:-1]:  # the first line is a version, the last one empty
        first, second = line.split()
        tokens.append(bytes(_CHARACTER_TO_BYTE[c] for c in first + second))
    return tokens


def _valid_text(document: Iterable[bytes]) -> Iterator[str]:
    for run in runs(document):
        text = run.decode("utf-8", "surrogateescape")
        if run.isascii() or not _INVALID.search(text):
            yield text
        else:
            yield from filter(None, _INVALID.split(text))


_INVALID = re.compile("[\udc80-\udcff]+")
