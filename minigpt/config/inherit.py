"""The architecture and tokenizer that the weights of `init.from` were trained with."""

import json
import os
from pathlib import Path
from typing import Any

from minigpt.config.convert import fitted, flatten, settings

MAX_BYTES = 1 << 16  # of a checkpoint's config.json
INHERITED = ("model.", "tokenizer.")


def inherited_settings(cls: type, source: str) -> dict[str, Any]:
    """Return the settings of a run's or checkpoint's model and tokenizer that its weights depend on.

    Args:
        cls: the config class that has them. A setting that the checkpoint lacks had its default.
        source: as `init.from` has it. What can't be read there gives no settings; the training says what is wrong.
    """
    path = Path(os.path.expanduser(source))
    files = [
        path / "config.json",
        *sorted(path.glob("step-*[0-9]/config.json")),
        *sorted(path.glob("checkpoints/step-*[0-9]/config.json")),
    ]
    try:
        with open(next(file for file in reversed(files) if file.is_file()), encoding="utf-8") as file:
            stored = flatten(json.loads(file.read(MAX_BYTES)))
    except (OSError, ValueError, RecursionError, AttributeError, StopIteration):
        return {}
    known = {key: each for key, each in settings(cls).items() if each.role == "weights" and key.startswith(INHERITED)}
    found = {key: stored.get(key, each.default) for key, each in known.items()}
    return found if not any(fitted(known[key].kind, value)[1] for key, value in found.items()) else {}
