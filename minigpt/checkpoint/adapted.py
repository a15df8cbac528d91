"""Adapters merged into models that were loaded without them; several such models share equal weights."""

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from minigpt.checkpoint.adapter import ADAPTER, ADAPTER_CONFIG, base_hash, read_adapter
from minigpt.checkpoint.foreign import NoTokenizer
from minigpt.checkpoint.load import MEMORY, LoadedCheckpoint, find_checkpoint, lists, load_checkpoint, read_file
from minigpt.config.foreign import MAX_CONFIG
from minigpt.data.chat.roles import has_roles, with_roles
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.files import read_plain
from minigpt.model.adapter import Adapter, merge, share


def open_adapter(path: str, which: str, loaded: LoadedCheckpoint) -> tuple[Path, Adapter]:
    """Read an adapter for a model.

    Args:
        path: a run with adapter=lora, a checkpoint of one, or a folder that peft wrote.
        which: of a run, "best" or "latest".
        loaded: the model, without an adapter.

    Returns:
        Where it is, and the adapter.

    Raises:
        UserFault: there is none, or it is for a model of another shape.
    """
    folder = Path(os.path.expanduser(path))
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / "MANIFEST.json").is_file():
        read = _of_peft(folder)
    else:
        nothing = f"adapter={path} holds no adapter. Give a run with adapter=lora, or a folder that peft wrote"
        try:
            folder = find_checkpoint(path, which)
        except UserFault:  # its sentence names checkpoint=, not adapter=
            raise UserFault(nothing) from None
        if not (folder / "MANIFEST.json").is_file() or not lists(folder, ADAPTER):
            raise UserFault(nothing)
        read = partial(read_file, folder)
    return folder, read_adapter(read, loaded.model, str(folder))


def _of_peft(folder: Path) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        try:
            size = os.path.getsize(folder / name)  # no more memory is asked for than the file needs
            return read_plain(folder / name, min(size + 1, MEMORY) if name == ADAPTER else MAX_CONFIG)
        except OSError as error:
            pickled = "; its adapter_model.bin is a pickle, which could run any code: save it as safetensors"
            hint = pickled if (folder / "adapter_model.bin").exists() else ""
            raise UserFault(f"{folder / name} can't be read: {error.strerror or error}{hint}") from None

    return read


def adapted(path: str, which: str, bases: Sequence[LoadedCheckpoint]) -> LoadedCheckpoint:
    """Return the model on which an adapter was trained, with the adapter merged in. Both share equal weights in memory.

    Args:
        path: as `open_adapter` takes it.
        which: of a run, "best" or "latest".
        bases: models just loaded, in fp32, among which the adapter's is found by its hash.

    Raises:
        UserFault: there is no adapter, or it was trained on none of these models.
    """
    folder, faults, hashes = Path(path), list[UserFault](), list[str]()
    for base in bases:
        try:
            folder, adapter = open_adapter(path, which, base)
        except UserFault as fault:  # of another shape, perhaps
            faults.append(fault)
            continue
        hashes.append(base_hash(base.model))
        if adapter.base == hashes[-1] or (not adapter.base and len(bases) == 1):
            return _made(base, folder, adapter)
    if not hashes:
        raise faults[0]
    if not adapter.base:
        raise UserFault(f"the adapter {folder} doesn't say on which model it was trained. Give a single checkpoint=")
    raise UserFault(
        f"the adapter {folder} lies on another model: it was trained on weights with the SHA-256 {adapter.base[:12]}, "
        f"got {' and '.join(each[:12] for each in hashes)}. Give as checkpoint= what its run had as init.from"
    )


def _made(base: LoadedCheckpoint, folder: Path, adapter: Adapter) -> LoadedCheckpoint:
    if (folder / "MANIFEST.json").is_file():  # a whole checkpoint, with the tokens that conversations may have added
        made = load_checkpoint(folder)
    else:
        _refuse_new_tokens(base.tokenizer, folder, adapter)
        made = replace(base, model=copy.deepcopy(base.model), path=folder)
        merge(made.model, adapter)
    share(made.model, base.model)
    return made


def _refuse_new_tokens(tokenizer: Tokenizer, folder: Path, adapter: Adapter) -> None:
    """Refuse peft's two files alone if the adapter learned control tokens for which the model has no embeddings."""
    if isinstance(tokenizer, NoTokenizer) or has_roles(tokenizer) or adapter.tokenizer != with_roles(tokenizer).hash:
        return
    raise UserFault(
        f"the adapter {folder} learned conversations with control tokens that the model lacks: their embeddings are "
        "not in peft's two files. Give as adapter= the run, or a whole folder of its checkpoints/"
    )
