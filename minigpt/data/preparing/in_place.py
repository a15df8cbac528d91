"""Tokens that others wrote, used where they lie: llm.c's shards, and nanoGPT's train.bin and val.bin.

Nothing is copied: the prepared folder holds links to them. They are read through for their SHA-256, their
largest token, and the text that they stand for.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.data.readers.document import File
from minigpt.data.shards import (
    HEADER_BYTES,
    open_shard,
    refuse_strange_token,
    shard_name,
    write_sidecar,
)
from minigpt.data.sources.corpus import MAGICS, Corpus, token_header
from minigpt.data.sources.split import count_characters
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.faults import UserFault
from minigpt.files import replaced, sha256_of
from minigpt.screen import Progress, Say

PIECE_TOKENS = 1 << 20


def _tokenizer_of(corpus: Corpus, name: str, stated: Tokenizer | None) -> Tokenizer:
    """Return the stated tokenizer, unless it is to be learned (None); or GPT-2's, of llm.c's uint16 shards."""
    for file in corpus.files:
        header, unsaid = token_header(file), stated is None or stated.name in ("byte", "gpt2")
        if unsaid and (header is None or MAGICS[header[0]] != "uint16") and file.path.with_name("meta.pkl").exists():
            raise UserFault(
                f"{file.path} holds tokens of an alphabet of its own, in meta.pkl, a pickle, which is never opened: "
                "prepare their text with tokenizer=char"
            )
    if (corpus.files[0].path.with_name("prepared.json")).is_file():
        folder = corpus.files[0].path.parent
        raise UserFault(f"{folder} holds tokens that minigpt has prepared. Name the folder: data.mix={folder}:1")
    if stated is not None:
        return stated
    header = token_header(corpus.files[0])
    if header and MAGICS[header[0]] == "uint16":
        return build_tokenizer("gpt2")
    remedy = "Name what made them: tokenizer=gpt2 for most of nanoGPT's, or tokenizer=file tokenizer.file=FILE"
    raise UserFault(f"{corpus.files[0].path} holds tokens, and tokenizer={name} is learned from text. {remedy}")


def link_tokens(
    folder: Path, corpus: Corpus, name: str, given: Tokenizer | None, say: Say
) -> tuple[Tokenizer, dict[str, dict[str, Any]], Counter[str]]:
    """Write links to tokens, and the sidecars, into a folder. Return the tokenizer, the sidecars and counts.

    Raises:
        UserFault: a file is cut or not of this tokenizer; or a split is missing.
        OSError: a file can't be written.
    """
    if text := [file.label for file in corpus.files if file.path.suffix != ".bin"]:
        raise UserFault(f"data.source and data.val_source hold tokens and text ({text[0]}); wanted one of these")
    tokenizer = _tokenizer_of(corpus, name, given)
    say(f"data: the tokens are used where they are, as those of tokenizer={tokenizer.name}")
    texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    sizes = np.array([(len(text), count_characters(text)) for text in texts])
    progress = Progress("data: reading", corpus.size, say)
    has_val_source = any(file.is_val for file in corpus.files)
    sidecars, counts = dict[str, dict[str, Any]](), Counter[str]()
    for split in ("train", "val"):
        shards, layout, largest, before = list[dict[str, Any]](), dict[str, Any](), 0, counts["bytes"]
        for file in corpus.files:
            if (file.is_val if has_val_source else "val" in file.path.name) != (split == "val"):
                continue
            tokens, layout = _open(file)
            largest = max(largest, _count(file, tokens, tokenizer, sizes, counts, progress))
            shards.append(
                {"file": shard_name(split, len(shards)), "tokens": len(tokens), "sha256": sha256_of(file.path)}
            )
            with replaced(folder / shards[-1]["file"]) as temporary:
                os.symlink(os.path.abspath(file.path), temporary)
        total = sum(shard["tokens"] for shard in shards)
        if total < 2:
            raise UserFault(f"data.source has no tokens for {split}: the files to validate on have val in their names")
        facts = {"tokens": total, "bytes": counts["bytes"] - before, "max_token": largest, "shards": shards}
        sidecars[split] = write_sidecar(folder, split, tokenizer, facts | layout | {"shard_tokens": total})
    return tokenizer, sidecars, counts


def _open(file: File) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return the tokens of a file, and their layout in it."""
    header, size = token_header(file), file.size
    if header:
        dtype = MAGICS[header[0]]
        return open_shard(file.path, header[2], np.dtype(dtype)), {"dtype": dtype, "header_bytes": HEADER_BYTES}
    if size % 2 or not size:
        raise UserFault(f"{file.path} is {size:,} bytes, no whole number of uint16 tokens: it is cut. Make it again")
    return open_shard(file.path, size // 2, np.dtype(np.uint16), 0), {"dtype": "uint16", "header_bytes": 0}


def _count(
    file: File,
    shard: NDArray[Any],
    tokenizer: Tokenizer,
    sizes: NDArray[Any],
    counts: Counter[str],
    progress: Callable[[int], None],
) -> int:
    """Count the text of a shard; return its largest token."""
    largest = 0
    for start in range(0, len(shard), PIECE_TOKENS):
        piece = np.asarray(shard[start : start + PIECE_TOKENS])
        largest = max(largest, int(piece.max()))
        if largest >= tokenizer.vocab_size:
            refuse_strange_token(file.path, shard, tokenizer)
        n_bytes, characters = sizes[piece].sum(0).tolist()
        counts.update(bytes=n_bytes, characters=characters, documents=int(np.count_nonzero(piece == tokenizer.eot)))
        progress(piece.nbytes)
    return largest
