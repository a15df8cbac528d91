"""Open prepared tokens at a URL (data.shards): small files are copied, the training tokens stay where they are."""

import os
import re
import tempfile
from pathlib import Path

from minigpt.config.schema import DataConfig, TokenizerConfig
from minigpt.data.prepared import REMOTE, Prepared, locked, open_folder, read_prepared, refuse_conversations
from minigpt.data.remote import RemoteFolder, pieces_of
from minigpt.data.shards import read_sidecar
from minigpt.data.sources.find import typed_path
from minigpt.data.tokenizer import load_tokenizer
from minigpt.faults import StorageFailure, UserFault
from minigpt.files import read_json
from minigpt.screen import Say


def open_remote(data: DataConfig, tokenizer: TokenizerConfig, say: Say) -> Prepared:
    """Copy a prepared folder at a URL, except for its training tokens, and open it."""
    remote, root = RemoteFolder(str(data.shards)), typed_path(data.dir) / REMOTE
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as new:
            remote.copy("prepared.json", Path(new))
            content = read_prepared(Path(new))
            if not re.fullmatch("[0-9a-f]{64}", str(content.get("fingerprint"))):
                raise UserFault(
                    f"data.shards={remote.shown} is no folder that `minigpt prepare` has made: copy one there"
                )
            refuse_conversations(content, f"data.shards={remote.shown}")
            folder = root / content["fingerprint"][:16]  # the same for the same tokens at another address
            folder.mkdir(exist_ok=True)
            pieces_of(folder).mkdir(exist_ok=True)
            with locked(folder, say):
                if not read_prepared(folder):
                    say(f"data: fetching tokenizer and validation text from {remote.shown} to {folder}")
                    _copy_beginning(remote, folder)
                    os.replace(Path(new) / "prepared.json", folder / "prepared.json")
    except OSError as error:
        wrong = f"{error.filename or root} can't be written: {error.strerror or error}"
        raise StorageFailure(f"{wrong}. Make room or choose another folder: data.dir=DIR") from error
    found = open_folder(folder, say, remote=remote, limit_bytes=1e9 * data.cache_gb)
    if found.tokenizer.name != tokenizer.name:
        theirs = found.tokenizer.name
        raise UserFault(
            f"data.shards holds tokens of tokenizer={theirs}, got tokenizer={tokenizer.name}. Use the former"
        )
    return found


def _copy_beginning(remote: RemoteFolder, folder: Path) -> None:
    for name in ("tokenizer.json", "train.json", "val.json"):
        remote.copy(name, folder)
    tokenizer = load_tokenizer(read_json(folder / "tokenizer.json"), folder / "tokenizer.json")
    for entry in read_sidecar(folder, "val", tokenizer)["shards"]:
        remote.copy(entry["file"], folder)
