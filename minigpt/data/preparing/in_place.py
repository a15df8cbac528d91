"""Tokens that others wrote, used where they lie: llm.c's shards, and nanoGPT's train.bin and val.bin.

Nothing is copied: the prepared folder holds links to them. They are read through for their SHA-256, their
largest token, and the text that they stand for.
"""

import hashlib
import os
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
    stated_sha256,
    write_sidecar,
)
from minigpt.data.sources.corpus import Corpus
from minigpt.data.sources.find import MAGICS, token_files, token_header
from minigpt.data.sources.survey import Survey, count_characters, signature
from minigpt.data.tokenizer import FORMAT, Tokenizer, build_tokenizer, load_tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_json, replaced, sha256_of

PIECE_TOKENS = 1 << 20
RULE = "the files with val in their names for validation"


def tokenizer_of(corpus: Corpus, name: str, stated: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer of tokens: ours beside our own shards, GPT-2's of other uint16 shards, or the stated one.

    Args:
        corpus: whose files are tokens.
        name: of the tokenizer that the command line names, or the default.
        stated: that tokenizer, if it needs no text to learn from; else None.

    Raises:
        UserFault: it must be stated, or the one beside the tokens is another.
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
    remedy = (
        "Name what made them: tokenizer=gpt2 for most of nanoGPT's, or tokenizer=file tokenizer.file=tokenizer.json"
    )
    raise UserFault(f"{corpus.files[0].path} holds tokens, and tokenizer={name} is learned from text. {remedy}")


def read_tokens(corpus: Corpus, tokenizer: Tokenizer, progress: Callable[[int], None]) -> Survey:
    """Read all tokens of a corpus.

    Args:
        corpus: whose files are tokens.
        tokenizer: that made them.
        progress: called with the number of bytes read since the last call.

    Raises:
        UserFault: files are cut or not of this tokenizer, all of which it names; or a split is missing.
    """
    tokens, border = token_files(corpus.files), len(corpus.files) - corpus.val_files
    if text := [file.label for file in corpus.files if file not in tokens]:
        raise UserFault(f"data.source and data.val_source hold tokens and text ({text[0]}); wanted one of these")
    found, lines, bad = Survey(corpus, signature(corpus), blank=False), [], []
    texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    sizes = np.array([(len(text), count_characters(text)) for text in texts])
    parts = {"train": list(corpus.files[:border]), "val": list(corpus.files[border:])}
    if not corpus.val_files:
        parts = {name: [file for file in tokens if ("val" in file.path.name) == (name == "val")] for name in parts}
    for name, files in parts.items():
        split: dict[str, Any] = {"tokens": 0, "max_token": 0, "shard_tokens": 1, "shards": [], "paths": []}
        bytes_before = found.bytes
        for file in files:
            try:
                shard, layout = _open(file)
                if not split["tokens"]:
                    split |= layout
                if not layout.items() <= split.items():
                    raise UserFault(f"{file.path} holds other tokens than {split['paths'][0]}: {layout}")
                digest, stated = sha256_of(file.path), stated_sha256(file.path)
                if stated not in (None, digest):
                    raise UserFault(
                        f"{file.path} was changed since it was made: the sidecar beside it states another SHA-256. "
                        "Copy it again from where it was made, or make it again there"
                    )
                largest = _count(file, shard, tokenizer, sizes, found, progress)
            except UserFault as fault:
                bad.append(str(fault))
                continue
            lines.append(f"{digest}  {file.label}\n")
            entry = {"file": shard_name(name, len(split["shards"])), "tokens": len(shard), "sha256": digest}
            split["shards"].append(entry)
            split["paths"].append(os.path.abspath(file.path))
            split["tokens"] += len(shard)
            split["max_token"] = max(split["max_token"], largest)
            split["shard_tokens"] = max(split["shard_tokens"], len(shard))
        if split["tokens"] < 2 and not bad:
            bad.append(f"data.source has no tokens for {name}: the files to validate on have val in their names")
        found.tokens[name] = split | {"bytes": found.bytes - bytes_before}
    if bad:
        raise UserFault(*bad)
    found.sha256 = hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    return found


def link(folder: Path, found: Survey, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Write links to the tokens, and the sidecars, into `folder`; return the sidecars.

    Raises:
        OSError: it can't be written.
    """
    sidecars = []
    for name, split in found.tokens.items():
        for path, entry in zip(split["paths"], split["shards"], strict=True):
            with replaced(folder / entry["file"]) as temporary:
                os.symlink(path, temporary)
        facts = {key: value for key, value in split.items() if key != "paths"}
        sidecars.append(write_sidecar(folder, name, tokenizer, facts))
    return sidecars


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
    found: Survey,
    progress: Callable[[int], None],
) -> int:
    """Add the bytes, characters and documents of a shard; return its largest token."""
    largest = 0
    for start in range(0, len(shard), PIECE_TOKENS):
        piece = np.asarray(shard[start : start + PIECE_TOKENS])
        largest = max(largest, int(piece.max()))
        if largest >= tokenizer.vocab_size:
            refuse_strange_token(file.path, shard, tokenizer)
        n_bytes, characters = sizes[piece].sum(0).tolist()
        found.bytes += n_bytes
        found.characters += characters
        found.documents += int(np.count_nonzero(piece == tokenizer.eot))
        progress(piece.nbytes)
    return largest
