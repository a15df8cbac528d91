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
from minigpt.data.tokenizer import FORMAT, Tokenizer, build_tokenizer, load_tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json, replaced, sha256_of
from minigpt.screen import Progress, Say

PIECE_TOKENS = 1 << 20


def _tokenizer_of(corpus: Corpus, name: str, stated: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer of tokens: ours beside our own shards, GPT-2's of other uint16 shards, or the stated one.

    Args:
        corpus: whose files are tokens.
        name: of the tokenizer that the command line names, or the default.
        stated: that tokenizer, if it needs no text to learn from; else None.
    """
    for file in corpus.files:
        header, unsaid = token_header(file), stated is None or stated.name in ("byte", "gpt2")
        if unsaid and (header is None or MAGICS[header[0]] != "uint16") and file.path.with_name("meta.pkl").exists():
            raise UserFault(
                f"{file.path} holds tokens of an alphabet of its own, in meta.pkl, a pickle, which is never opened: "
                "prepare their text with tokenizer=char"
            )
    for path in dict.fromkeys(file.path.with_name("tokenizer.json") for file in corpus.files):
        content = read_json(path) if path.is_file() else None
        if isinstance(content, dict) and content.get("format") == FORMAT:
            own = load_tokenizer(content, path)
            stated = stated or own
            if own.hash != stated.hash:
                raise UserFault(
                    f"{path} says that the tokens beside it are of tokenizer={own.name} (SHA-256 {own.hash[:12]}), and "
                    f"tokenizer={stated.name} ({stated.hash[:12]}) is another. Leave it out: it is taken from there"
                )
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
        UserFault: files are cut or not of this tokenizer, all of which it names; or a split is missing.
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
    sidecars, counts, bad = dict[str, dict[str, Any]](), Counter[str](), list[str]()
    for split in ("train", "val"):
        shards, layouts, largest, before = list[dict[str, Any]](), list[dict[str, Any]](), 0, counts["bytes"]
        for file in corpus.files:
            is_val = file.is_val if has_val_source else "val" in file.path.name
            if is_val != (split == "val"):
                continue
            try:
                tokens, layout = _open(file)
                layouts.append(layout)
                if layout != layouts[0]:
                    raise UserFault(f"{file.path} holds other tokens than the files before it: {layout}")
                largest = max(largest, _count(file, tokens, tokenizer, sizes, counts, progress))
            except UserFault as fault:
                bad.append(str(fault))
                continue
            shards.append(
                {"file": shard_name(split, len(shards)), "tokens": len(tokens), "sha256": sha256_of(file.path)}
            )
            with replaced(folder / shards[-1]["file"]) as temporary:
                os.symlink(os.path.abspath(file.path), temporary)
        total = sum(shard["tokens"] for shard in shards)
        if total < 2 and not bad:
            bad.append(f"data.source has no tokens for {split}: the files to validate on have val in their names")
        if not bad:
            facts = {"tokens": total, "bytes": counts["bytes"] - before, "max_token": largest, "shards": shards}
            sidecars[split] = write_sidecar(folder, split, tokenizer, facts | layouts[0] | {"shard_tokens": total})
    if bad:
        raise UserFault(*bad)
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
