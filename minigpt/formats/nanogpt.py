"""The weights and the tokenizer of nanoGPT: ckpt.pt, and meta.pkl beside it."""

import io
import pickle
from pathlib import Path
from typing import Any

from torch import Tensor

from minigpt.data.tokenizer import Tokenizer, build_tokenizer
from minigpt.faults import UserFault
from minigpt.imported_models import load_nanogpt


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the weights of ckpt.pt, under nanoGPT's names."""
    return {name.removeprefix("_orig_mod."): tensor for name, tensor in load_nanogpt(path)["model"].items()}


class PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, texts and numbers, and refuses to look up whatever a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a ckpt.pt: the characters of the meta.pkl beside it, or GPT-2's."""
    meta = path.with_name("meta.pkl")
    if not meta.is_file() and vocab_size in (50257, 50304):  # GPT-2's, and as nanoGPT rounds it up
        return build_tokenizer("gpt2")
    if not meta.is_file():
        raise UserFault(f"{path} has no tokenizer. For one of characters copy nanoGPT's data/.../meta.pkl beside it")
    try:
        itos = PlainUnpickler(io.BytesIO(meta.read_bytes())).load()["itos"]
        return Tokenizer("char", [itos[token].encode() for token in range(len(itos))])
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        reason = f"{type(error).__name__}: {error}"
        raise UserFault(f"{meta} is not nanoGPT's meta.pkl of characters, which holds itos ({reason})") from None
