"""Models named as on Hugging Face's hub, `owner/name`, and the folder of their copy on this machine."""

import functools
import os
from pathlib import Path

from minigpt.config.convert import shown
from minigpt.config.sources import at, is_hub_name
from minigpt.faults import UserFault
from minigpt.redact import redact

_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors", "model.safetensors.index.json"]


def local_path(source: str | Path) -> Path:
    """Return the path of a run, checkpoint or model; a model on the hub is fetched, or taken from its copy here.

    The hub's own library fetches it, with its cache, tokens and environment variables (HF_HOME, HF_TOKEN,
    HF_HUB_OFFLINE).

    Raises:
        UserFault: it is neither here nor on the hub.
    """
    return _fetched(str(source)) if is_hub_name(str(source)) else Path(at(str(source)))


@functools.cache
def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # of httpx, of the hub, of the disk
        reason = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
        raise UserFault(
            f"{shown(name)} is no folder here (looked from {os.getcwd()}), and Hugging Face's hub does not give a "
            f"model of this name: {reason}. Give a run, a checkpoint or a model's folder"
        ) from None
