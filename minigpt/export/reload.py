"""Reads an exported Hugging Face folder back, with transformers if it is installed, else with our own importer."""

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import tokenizers
import torch

from minigpt.checkpoint.load import load_checkpoint
from minigpt.export.proof import Reloaded


def reload_huggingface(folder: Path) -> Reloaded:
    """Return the model and tokenizer that were read back.

    Raises:
        RuntimeError: transformers finds weights missing, left over or of another shape.
        UserFault: our importer finds them so.
    """
    if importlib.util.find_spec("transformers") is None:
        return _with_our_importer(folder)
    transformers: Any = importlib.import_module("transformers")  # by name: mypy must not need it
    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    if found := {key: value for key, value in info.items() if value}:
        raise RuntimeError(f"transformers does not find the model that was written: {found}")
    by = f"transformers {transformers.__version__}"
    logits = model.eval().__call__
    if not (folder / "tokenizer.json").exists():
        return Reloaded(by, lambda tokens: logits(tokens).logits)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    return Reloaded(
        by,
        lambda tokens: logits(tokens).logits,
        lambda texts: auto(texts, add_special_tokens=False, verbose=False, split_special_tokens=True)["input_ids"],
        lambda tokens: auto.decode(tokens, skip_special_tokens=True),
        json.loads(auto.backend_tokenizer.to_str())["model"]["merges"],
    )


def _with_our_importer(folder: Path) -> Reloaded:
    model = load_checkpoint(folder).model
    by = "minigpt's own importer (transformers is not installed)"
    path = folder / "tokenizer.json"
    return with_tokenizers(by, model, path.read_text(encoding="utf-8") if path.exists() else None)


def with_tokenizers(by: str, logits: Any, content: str | None) -> Reloaded:
    """Return a model with the tokenizer that a tokenizer.json describes, as the `tokenizers` library reads it."""
    if content is None:
        return Reloaded(by, logits)
    tokenizer = tokenizers.Tokenizer.from_str(content)
    tokenizer.encode_special_tokens = True  # text is only ever text
    return Reloaded(
        by,
        logits,
        lambda texts: [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)],
        lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True),
        json.loads(tokenizer.to_str())["model"]["merges"],
    )
