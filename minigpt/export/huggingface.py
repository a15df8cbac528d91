"""A model as a Hugging Face folder: config.json, model.safetensors, the tokenizer and the model card."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from minigpt.data.chat.roles import END, has_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.export.architecture import config_json, their_weights
from minigpt.export.tokenizer_json import tokenizer_config, tokenizer_json
from minigpt.model.gpt import GPT


def write_huggingface(folder: Path, model: GPT, tokenizer: Tokenizer | None) -> None:
    """Make a folder and write all but the model card into it.

    Raises:
        UserFault: the format can't express the model or its tokenizer; nothing was written.
    """
    end = tokenizer.eot if tokenizer else None
    ends = [tokenizer.special[END], end] if tokenizer and has_roles(tokenizer) else end
    ids = {"bos_token_id": end, "eos_token_id": ends, "pad_token_id": None}
    files: dict[str, Any] = {
        "config.json": config_json(model) | ids | {"dtype": "float32", "use_cache": True},
        "generation_config.json": ids,
    }
    if tokenizer:
        files["tokenizer.json"] = tokenizer_json(tokenizer)
        files["tokenizer_config.json"] = tokenizer_config(tokenizer, model.config.block_size)
    weights = their_weights(model)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
