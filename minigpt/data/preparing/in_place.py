"""Tokens that other programs wrote, used in place: llm.c's shards, and nanoGPT's train.bin and val.bin.

Nothing is copied: the prepared folder holds links to them. They are read once for their SHA-256, their
largest token, and the number of bytes of their text.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from minigpt.data.shards import HEADER_BYTES, Shard, open_shard, shard_name
from minigpt.data.sources.corpus import Corpus, token_header
from minigpt.data.sources.split import count_characters
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.faults import UserFault
from minigpt.files import replaced, sha256_of
from minigpt.screen import Progress, tell

PIECE_TOKENS = 1 << 20


def _tokenizer_of(corpus: Corpus, name: str, stated: Tokenizer | None) -> Tokenizer:
    """Return the stated tokenizer, unless it is to be learned (None); or GPT-2's, of llm.c's uint16 shards."""
    path, header = corpus.files[0].path, token_header(corpus.files[0])
    if path.with_name("prepared.json").is_file():
        folder = path.parent
        raise UserFault(f"{folder} holds tokens that minigpt has prepared. Name the folder: data.mix={folder}:1")
    if (stated is None or stated.name in ("byte", "gpt2")) and path.with_name("meta.pkl").exists():
        wrong = "holds tokens of an alphabet of its own, in meta.pkl, a pickle, which is never opened"
        raise UserFault(f"{path} {wrong}: prepare their text with tokenizer=char")
    if stated is None and header and header[0] == "uint16":
        return build_tokenizer("gpt2")
    if stated is None:
        remedy = "Name what made them: tokenizer=gpt2 for most of nanoGPT's, or tokenizer=file tokenizer.file=FILE"
        raise UserFault(f"{path} holds tokens, and tokenizer={name} is learned from text. {remedy}")
    return stated


def link_tokens(
    folder: Path, corpus: Corpus, name: str, given: Tokenizer | None
) -> tuple[Tokenizer, dict[str, list[Shard]], Counter[str]]:
    """Write links to tokens into a folder. Return the tokenizer, what is known of each split's shards, and counts.

    Raises:
        UserFault: a file is cut or not of this tokenizer; or a split is missing.
        OSError: a link can't be made.
    """
    if text := [file.label for file in corpus.files if file.path.suffix != ".bin"]:
        raise UserFault(f"data.source and data.val_source hold tokens and text ({text[0]}); wanted one of these")
    tokenizer = _tokenizer_of(corpus, name, given)
    tell(f"data: the tokens are used where they are, as those of tokenizer={tokenizer.name}")
    texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    sizes = np.array([(len(text), count_characters(text)) for text in texts])
    progress = Progress("data: reading", corpus.size)
    has_val_source = any(file.is_val for file in corpus.files)
    splits, counts = {"train": list[Shard](), "val": list[Shard]()}, Counter[str]()
    for file in corpus.files:
        split = "val" if (file.is_val if has_val_source else "val" in file.path.name) else "train"
        header, before = token_header(file), counts["bytes"]
        dtype, n_tokens = header or ("uint16", file.size // 2)
        header_bytes = HEADER_BYTES if header else 0
        tokens = open_shard(file.path, n_tokens, np.dtype(dtype), header_bytes)
        for start in range(0, n_tokens, PIECE_TOKENS):
            piece = np.asarray(tokens[start : start + PIECE_TOKENS])
            if piece.max() >= tokenizer.vocab_size:
                place = int(np.argmax(piece >= tokenizer.vocab_size))
                held = f"{file.path} holds token id {piece[place]} at position {start + place:,}"
                raise UserFault(f"{held}; the vocab_size of its {tokenizer.name} tokenizer is {tokenizer.vocab_size:,}")
            n_bytes, characters = sizes[piece].sum(0).tolist()
            counts.update(bytes=n_bytes, characters=characters, documents=int(np.count_nonzero(piece == tokenizer.eot)))
            progress(piece.nbytes)
        shard: Shard = {"file": shard_name(split, len(splits[split])), "sha256": sha256_of(file.path)}
        shard |= {"dtype": dtype, "header_bytes": header_bytes, "tokens": n_tokens, "bytes": counts["bytes"] - before}
        splits[split].append(shard)
        with replaced(folder / shard["file"]) as temporary:
            os.symlink(os.path.abspath(file.path), temporary)
    for split, shards in splits.items():
        if not shards:
            raise UserFault(f"data.source has no tokens for {split}: the files to validate on have val in their names")
    return tokenizer, splits, counts
