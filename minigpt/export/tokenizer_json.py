"""Our tokenizers as Hugging Face's tokenizer.json: the same ids, text and merges."""

import itertools
from typing import Any

from minigpt.data.tokenizer import END_OF_TEXT, Tokenizer
from minigpt.data.tokenizers.bpe import CHARACTER_TO_BYTE
from minigpt.faults import UserFault

BYTE_TO_CHARACTER = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the `tokenizers` library reads.

    Raises:
        UserFault: a token that no merge of two others makes.
    """
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size - (tokenizer.eot is not None))]
    is_char = tokenizer.name == "char"
    vocab = {token.decode() if is_char else as_text(token): number for number, token in enumerate(tokens)}
    merges = [] if is_char else [[as_text(first), as_text(second)] for first, second in merges_of(tokens)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = []
    if tokenizer.eot is not None:
        vocab[END_OF_TEXT] = tokenizer.eot
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = [{"id": tokenizer.eot, "content": END_OF_TEXT, **plain, "special": True}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None if is_char else byte_level | {"use_regex": tokenizer.name != "byte"},
        "post_processor": None,
        "decoder": {"type": "Fuse"} if is_char else byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def tokenizer_config(tokenizer: Tokenizer, block_size: int) -> dict[str, Any]:
    """Return the tokenizer_config.json beside it: text is only ever text, and nothing is cleaned up."""
    end = END_OF_TEXT if tokenizer.eot is not None else None
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "bos_token": end,
        "eos_token": end,
    }


def as_text(token: bytes) -> str:
    """Return a token as byte-level BPE files write it."""
    return "".join(BYTE_TO_CHARACTER[byte] for byte in token)


def merges_of(tokens: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the merges that make these tokens, whose place is their rank: for each, the two pieces that it joins.

    They are what is left of its bytes when all tokens of lower rank have been merged.

    Raises:
        UserFault: something else than two is left: no merges make this token.
    """
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        if len(token) == 1:
            continue
        pieces = [token[place : place + 1] for place in range(len(token))]
        while len(pieces) > 2:
            joined = [ranks.get(first + second, rank) for first, second in itertools.pairwise(pieces)]
            best = min(range(len(joined)), key=joined.__getitem__)
            if joined[best] >= rank:
                break
            pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        if len(pieces) != 2:
            raise UserFault(f"token {rank} ({token!r}) is no merge of two others: no tokenizer.json can say that")
        merges.append((pieces[0], pieces[1]))
    return merges
