"""tokenizer=gpt2: GPT-2's own vocabulary, from the file that tiktoken caches."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from minigpt.config.foreign import VOCAB_SHA256
from minigpt.data.sources.download import download
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE, GPT2_BYTES, PATTERN, BPEEncoder
from minigpt.data.tokenizers.scheme import Scheme
from minigpt.faults import UserFault
from minigpt.files import write_file

VOCAB_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"


def gpt2_ranks() -> list[bytes]:
    """Return GPT-2's 50,256 tokens, from the file tiktoken caches, which is fetched when it is missing.

    Raises:
        UserFault: the file is not there and can't be fetched within 2 s.
    """
    tokens = [bytes([b]) for b in GPT2_BYTES]
    for line in _gpt2_file().decode().split("\n")[1:-1]:  # the first line is a version, the last one empty
        first, second = line.split()
        tokens.append(bytes(CHARACTER_TO_BYTE[c] for c in first + second))
    return tokens


def _gpt2_file() -> bytes:
    named = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "data-gym-cache"
    path = folder / hashlib.sha1(VOCAB_URL.encode()).hexdigest()
    problem = "is missing"
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == VOCAB_SHA256:
            return content
        problem = f"is damaged (its SHA-256 is not {VOCAB_SHA256})"
    try:
        content = download(VOCAB_URL, VOCAB_SHA256)
    except ConnectionError as error:
        missing = f"{path} {problem}, and {VOCAB_URL} can't be fetched ({error})"
        remedy = "Put that file there, name tiktoken's cache folder in TIKTOKEN_CACHE_DIR, or use tokenizer=bpe"
        raise UserFault(f"tokenizer=gpt2 needs GPT-2's merges: {missing}. {remedy}") from None
    with contextlib.suppress(OSError):  # a cache that can't be written costs a download next time, no more
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    return content


GPT2 = Scheme(BPEEncoder, vocabulary=lambda vocab_size, alphabet, train: gpt2_ranks(), pattern=PATTERN)
