"""Read a checkpoint for use: the model and its tokenizer, from the folder alone, without running anything in it.

A checkpoint may be a stranger's: every file is compared with the manifest, and names and shapes with the config.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from minigpt import files
from minigpt.checkpoint import contents, folder
from minigpt.checkpoint.adapters import ADAPTER, ADAPTER_CONFIG, base_hash, read_adapter
from minigpt.config.check import stored_config
from minigpt.config.schema import TrainConfig
from minigpt.config.sources import from_here, local_path
from minigpt.data.chat.roles import with_roles
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.formats.architecture import is_imported, read_imported_config
from minigpt.formats.huggingface import VOCABULARY, imported_tokenizer, read_imported_weights
from minigpt.model.gpt import GPT, empty_gpt
from minigpt.model.lora import Adapter, merge, share

POSITIONS = "position_embedding.weight"


@dataclass
class LoadedCheckpoint:
    """What a checkpoint folder holds."""

    model: GPT  # in eval mode, on the CPU, fp32
    tokenizer: Tokenizer
    config: TrainConfig
    state: dict[str, Any]  # state.json
    path: Path

    @property
    def run(self) -> Path:
        """The run that it is of; the path itself of a model without a run."""
        path = self.path.resolve()
        return path.parents[1] if path.parent.name == "checkpoints" else path


def find_checkpoint(path: str | Path, which: str = "best") -> Path:
    """Return the checkpoint folder that a path names; the path of another program's model is returned unchanged.

    In a run directory, which="best" has the lowest validation loss, "latest" is the newest that verifies.
    """
    path = local_path(path)
    if is_imported(path):
        return path
    if not path.is_dir():
        wrong = " is a file." if path.exists() else f" does not exist{from_here(str(path), 'runs')}"
        models = "a run directory (runs/NAME), a checkpoint in it, a folder of Hugging Face, or nanoGPT's ckpt.pt"
        raise UserFault(f"{path}{wrong} Give {models}")
    if (path / folder.MANIFEST).is_file():
        return path
    checkpoints = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if which == "best" and (best := folder.best_checkpoint(checkpoints)) is not None:
        return best
    reasons = []
    for checkpoint in reversed(folder.list_checkpoints(checkpoints)):
        try:
            folder.verify(checkpoint)
            return checkpoint
        except folder.DamagedCheckpoint as damage:
            reasons.append(f"  {damage}")
    if reasons:
        raise NoUsableCheckpoint(f"no checkpoint in {checkpoints} can be used:\n" + "\n".join(reasons))
    raise UserFault(f"{path} holds no checkpoint. Give a run directory (runs/NAME), or train one: minigpt train")


def load_checkpoint(path: str | Path, which: str = "best") -> LoadedCheckpoint:
    """Load model and tokenizer of a run or checkpoint directory, a Hugging Face folder, or nanoGPT's ckpt.pt.

    `which`, of a run, is "best" or "latest".
    """
    checkpoint = find_checkpoint(path, which)
    if is_imported(checkpoint):
        return _load_imported(checkpoint)
    config, tokenizer = read_config(checkpoint), read_tokenizer(checkpoint)
    state, weights = read_json(checkpoint, contents.STATE), read_tensors(checkpoint, contents.MODEL)
    model = empty_gpt(config.model, tokenizer.vocab_size, device="meta")
    refuse_other_shapes(model, weights, str(checkpoint))  # the model is as large as the bytes that exist, and no larger
    model = empty_gpt(config.model, tokenizer.vocab_size)  # to_empty() would load torch's compiler
    load_weights(model, weights, str(checkpoint))
    merge_own_adapter(model, checkpoint)
    return LoadedCheckpoint(model.eval(), tokenizer, config, state, checkpoint)


def merge_own_adapter(model: GPT, checkpoint: Path) -> None:
    """Merge the adapter in a checkpoint, if any, into a model that has the weights of that checkpoint."""
    if lists(checkpoint, ADAPTER):
        merge(model, read_adapter(lambda name: folder.verify_file(checkpoint, name), model, str(checkpoint)))


def _load_imported(path: Path) -> LoadedCheckpoint:
    config, vocab_size = read_imported_config(path)
    weights = read_imported_weights(path)
    model = empty_gpt(config.model, vocab_size)
    load_weights(model, resize_vocabulary(weights, model), str(path))
    tokenizer = imported_tokenizer(path)
    if isinstance(tokenizer, Tokenizer):
        config.tokenizer.name, tokenizer.begins_texts = tokenizer.name, tokenizer.eot is not None
    return LoadedCheckpoint(model.eval(), cast(Tokenizer, tokenizer), config, {}, path)


def resize_vocabulary(weights: Mapping[str, Tensor], model: GPT, known: int | None = None) -> dict[str, Tensor]:
    """Pad or cut the vocabulary's rows to the model's size, and cut positions beyond block_size.

    Rows of tokens >= `known` are new: their initial values are shifted and scaled to the mean and deviation of the
    known rows. With smaller rows their logits would stay near zero, and with frozen weights they would never be drawn.
    """
    resized, start = dict(weights), model.state_dict()
    for name in (*VOCABULARY, POSITIONS):
        if name not in start or name not in weights:
            continue
        resized[name] = weights[name][: len(start[name])]
        missing = len(start[name]) - len(resized[name])
        if name in VOCABULARY and missing > 0:
            resized[name] = torch.nn.functional.pad(resized[name], (0, 0, 0, missing))
        if name in VOCABULARY and known is not None and known < model.vocab_size:
            old, fresh = resized[name][:known].to(start[name]), start[name][known:]
            resized[name] = torch.cat([old, old.mean(0) + fresh * (old.std(0) / fresh.std())])
    return resized


def lists(checkpoint: Path, name: str) -> bool:
    """Return whether a checkpoint's manifest lists a file of this name."""
    return name in folder.read_manifest(checkpoint)["files"]


def read_json(checkpoint: Path, name: str) -> dict[str, Any]:
    """Return the content of a checkpoint's JSON file."""
    return files.read_json(folder.verify_file(checkpoint, name))


def read_config(checkpoint: Path) -> TrainConfig:
    """Return the config of a checkpoint. Its values are used literally: nothing in them is resolved or called."""
    return _parsed(checkpoint, contents.CONFIG, stored_config)


def read_tokenizer(checkpoint: Path) -> Tokenizer:
    """Return the tokenizer of a checkpoint."""
    return _parsed(checkpoint, contents.TOKENIZER, load_tokenizer)


def _parsed(checkpoint: Path, name: str, parse: Callable[[Any], Any]) -> Any:
    content = read_json(checkpoint, name)
    try:
        return parse(content)
    except UserFault as fault:
        raise UserFault(f"{checkpoint / name} can't be used: {fault}. Use the checkpoint of an earlier step") from None


def read_tensors(checkpoint: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's safetensors file."""
    return contents.read_tensors(folder.verify_file(checkpoint, name))


def load_weights(model: GPT, weights: Mapping[str, Tensor], origin: str) -> None:
    """Copy weights into a model of the same shape."""
    refuse_other_shapes(model, weights, origin)
    state = model.state_dict()
    for name, tensor in state.items():
        tensor.copy_(weights[name])
    if (broken := contents.first_non_finite(state)) is not None:  # after the copy: fp32 can't hold each number of fp64
        raise UserFault(f"the checkpoint {origin} holds non-finite weights ({broken}). Use an earlier checkpoint")


def refuse_other_shapes(model: GPT, weights: Mapping[str, Tensor], origin: str) -> None:
    """Refuse weights whose names or shapes are not the model's."""
    if difference := contents.first_difference(model.state_dict(), weights):
        remedy = "Use the model=, tokenizer= and model.* values that the weights were trained with"
        raise UserFault(f"the weights in {origin} are not of this model's shape: {difference}. {remedy}")


def open_adapter(path: str, which: str, base: LoadedCheckpoint) -> tuple[Path, Adapter]:
    """Return where an adapter is, and the adapter, for the model of `base`."""
    place = Path(os.path.expanduser(path))
    if (place / ADAPTER_CONFIG).is_file() and not (place / folder.MANIFEST).is_file():
        return place, read_adapter(place.joinpath, base.model, path)
    checkpoint = find_checkpoint(path, which)
    if is_imported(checkpoint) or not lists(checkpoint, ADAPTER):
        raise UserFault(f"adapter={path} holds no adapter. Give a run with adapter=lora, or a folder that peft wrote")
    return checkpoint, read_adapter(lambda name: folder.verify_file(checkpoint, name), base.model, str(checkpoint))


def load_with_adapter(path: str, which: str, bases: Sequence[LoadedCheckpoint]) -> LoadedCheckpoint:
    """Return the model on which an adapter was trained, with the adapter merged in. Both share equal weights in memory.

    Args:
        path: a run with adapter=lora, a checkpoint of one, or a folder that peft wrote.
        which: of a run, "best" or "latest".
        bases: loaded models in fp32; the hash in the adapter selects its own.
    """
    place, faults, hashes = Path(path), list[UserFault](), list[str]()
    for base in bases:
        try:
            place, adapter = open_adapter(path, which, base)
        except UserFault as fault:  # of another shape, perhaps
            faults.append(fault)
            continue
        hashes.append(base_hash(base.model))
        if adapter.base == hashes[-1] or (not adapter.base and len(bases) == 1):
            return _merged(base, place, adapter)
    if not hashes:
        raise faults[0]
    trained_on = f"trained on weights of SHA-256 {adapter.base[:12]}" if adapter.base else "of no model it names"
    got = " and ".join(digest[:12] for digest in hashes)
    remedy = "Give the model it was trained on as checkpoint= (init.from of its run)"
    raise UserFault(f"the adapter {place} is {trained_on}, got {got}. {remedy}")


def _merged(base: LoadedCheckpoint, place: Path, adapter: Adapter) -> LoadedCheckpoint:
    known = base.tokenizer
    if (place / folder.MANIFEST).is_file():  # a whole checkpoint, with the tokens that conversations may have added
        loaded = load_checkpoint(place)
    elif isinstance(known, Tokenizer) and adapter.tokenizer == with_roles(known).hash != known.hash:
        wrong = "learned conversations with control tokens whose embeddings are not in peft's two files"
        raise UserFault(f"the adapter {place} {wrong}. Give as adapter= the run, or a whole folder of its checkpoints/")
    else:
        loaded = replace(base, model=copy.deepcopy(base.model), path=place)
        merge(loaded.model, adapter)
    share(loaded.model, base.model)
    return loaded
