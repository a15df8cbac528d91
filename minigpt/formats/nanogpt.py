"""nanoGPT's ckpt.pt and meta.pkl. Only this file calls torch.load, with weights_only: no pickle is run."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config.architecture import read_plain_pickle
from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.faults import UserFault


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights of ckpt.pt, under nanoGPT's names."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["model"]
        tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in content.items()}
        assert all(isinstance(tensor, Tensor) for tensor in tensors.values())
    except Exception as error:  # of torch, zip and pickle
        reason = " ".join(str(error).split())[:200]
        raise UserFault(f"{path}: its weights can't be read ({type(error).__name__}: {reason})") from None
    return tensors


def read_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a ckpt.pt: the characters of the meta.pkl beside it, or GPT-2's."""
    meta = path.with_name("meta.pkl")
    if not meta.is_file() and vocab_size in (50257, 50304):  # GPT-2's, and as nanoGPT rounds it up
        return build_tokenizer("gpt2")
    if not meta.is_file():
        raise UserFault(f"{path} has no tokenizer. For one of characters copy nanoGPT's data/.../meta.pkl beside it")
    content = read_plain_pickle(meta.read_bytes(), str(meta))
    itos = content.get("itos") if isinstance(content, dict) else None
    if not isinstance(itos, dict) or {*itos} != {*range(len(itos))}:
        raise UserFault(f"{meta} is not nanoGPT's meta.pkl of characters, which holds itos")
    if not all(isinstance(character, str) and len(character) == 1 for character in itos.values()):
        raise UserFault(f"{meta}: a token is not one character")
    try:
        return Tokenizer("char", [itos[token].encode() for token in range(len(itos))])
    except ValueError as fault:  # a character twice, or a lone surrogate
        raise UserFault(f"{meta} can't be used: {fault}") from None
