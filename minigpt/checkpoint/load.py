"""Read a checkpoint for use: the model and its tokenizer, from the folder alone, without running anything in it.

A checkpoint may be a stranger's. Every byte that is used was compared with the manifest, only plain files of the
folder are opened, and no size that a file claims is believed before the bytes for it are there.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from minigpt.checkpoint import pack, store
from minigpt.checkpoint.adapter import ADAPTER, read_adapter
from minigpt.checkpoint.foreign import foreign_tokenizer, is_foreign, read_foreign_config, read_foreign_weights
from minigpt.checkpoint.pack import CONFIG, MODEL, STATE, TOKENIZER
from minigpt.checkpoint.parts import TensorFiles
from minigpt.checkpoint.store import DamagedCheckpoint
from minigpt.config.check import find_faults
from minigpt.config.convert import flatten, read, settings, shown
from minigpt.config.hub import local_path
from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.model.adapter import merge
from minigpt.model.empty import empty_gpt
from minigpt.model.gpt import GPT
from minigpt.model.parts import held_rows, local

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # bytes of this machine: no larger file is read whole
MAX_BYTES = {CONFIG: 1 << 24, STATE: 1 << 20, TOKENIZER: 1 << 24, pack.CALLBACKS: 1 << 24}  # many times what ours need
VOCABULARY, POSITIONS = ("token_embedding.weight", "output.weight"), "position_embedding.weight"
OTHER_SETTING = re.compile(r"(?!model\b)(?=.{1,100}$)[a-z]\w*(\.[a-z]\w*)*")  # one that another version may have


@dataclass
class LoadedCheckpoint:
    """What a checkpoint folder holds."""

    model: GPT  # in eval mode, on the CPU, fp32
    tokenizer: Tokenizer
    config: TrainConfig
    state: dict[str, Any]  # state.json
    path: Path


def find_checkpoint(path: str | Path, which: str = "best") -> Path:
    """Return the checkpoint folder meant by a run directory or checkpoint directory; another program's model as it is.

    Nothing is changed there.

    Args:
        path: either, or a model's name on Hugging Face's hub.
        which: of a run, "best" (lowest validation loss) or "latest" (the newest that is whole).

    Raises:
        UserFault: there is no checkpoint at that path.
        NoUsableCheckpoint: there are checkpoints, but each is damaged.
    """
    path = local_path(path)
    if is_foreign(path):
        return path
    if path.is_file():
        raise UserFault(
            f"checkpoint={path} is a file, and a folder is wanted: a run directory (runs/NAME) or a checkpoint in it. "
            "Files that torch.save made (.pt, .ckpt, .bin) hold pickles, which could run any code: of them only "
            "nanoGPT's ckpt.pt is read, without running what it says"
        )
    if not path.is_dir():
        raise UserFault(f"checkpoint={path}: no such folder. Give a run directory (runs/NAME) or a checkpoint in it")
    if (path / "MANIFEST.json").is_file():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = store.best_checkpoint(folder) if which == "best" else None
    reasons = []
    for checkpoint in reversed(store.list_checkpoints(folder)) if found is None else ():
        try:
            store.verify(checkpoint)
            return checkpoint
        except DamagedCheckpoint as damage:
            reasons.append(f"  {damage}")
    if reasons:
        raise NoUsableCheckpoint(f"no checkpoint in {folder} can be used:\n" + "\n".join(reasons))
    if found is None:
        raise UserFault(
            f"checkpoint={path}: no checkpoint in it. Give a run directory (runs/NAME) that has one, "
            "or train one: minigpt train experiment=demo"
        )
    return found


def load_checkpoint(path: str | Path, which: str = "best", *, kernel: str = "fused") -> LoadedCheckpoint:
    """Load model and tokenizer.

    Args:
        path: a run directory or a checkpoint directory, a Hugging Face folder, or nanoGPT's ckpt.pt.
        which: of a run, "best" or "latest".
        kernel: how attention is computed.

    Raises:
        UserFault: nothing there, damaged, of another shape, or with non-finite weights.
        NoUsableCheckpoint: as `find_checkpoint`.
    """
    folder = find_checkpoint(path, which)
    if is_foreign(folder):
        return _load_foreign(folder, kernel)
    config = read_config(folder)
    tokenizer = read_tokenizer(folder)
    state = read_state(folder)
    weights = TensorFiles(folder, MODEL) if in_parts(folder) else read_tensors(folder, MODEL)
    found = weights.shapes if isinstance(weights, TensorFiles) else _shapes(weights)
    _refuse_other_shapes(expected_shapes(config.model, tokenizer.vocab_size, len(found)), found, str(folder))
    # The model is as large as the bytes that are there, and no larger.
    model = empty_gpt(config.model, tokenizer.vocab_size, kernel=kernel)
    load_weights(model, weights, str(folder))
    merge_own_adapter(model, folder)
    return LoadedCheckpoint(model.eval(), tokenizer, config, state, folder)


def merge_own_adapter(model: GPT, folder: Path) -> None:
    """Merge the adapter in a checkpoint, if any, into a model that has the weights of that checkpoint.

    Raises:
        UserFault: as `read_file`; or it is no adapter for this model.
    """
    if lists(folder, ADAPTER):
        merge(model, read_adapter(partial(read_file, folder), model, str(folder)))


def _load_foreign(path: Path, kernel: str) -> LoadedCheckpoint:
    config, vocab_size = read_foreign_config(path)
    weights = foreign_weights(path)
    model = empty_gpt(config.model, vocab_size, kernel=kernel)
    load_weights(model, fit_rows(weights, model), str(path))
    tokenizer = foreign_tokenizer(path)
    if isinstance(tokenizer, Tokenizer):
        config.tokenizer.name = tokenizer.name
    return LoadedCheckpoint(model.eval(), cast(Tokenizer, tokenizer), config, {}, path)


def foreign_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of another program's model, under our names; no rows pad their vocabulary.

    Raises:
        UserFault: they are not those that its config.json describes.
    """
    config, vocab_size = read_foreign_config(path)
    shapes = expected_shapes(config.model, vocab_size, config.model.n_layer)
    shapes |= {name: (vocab_size, shapes[name][1]) for name in VOCABULARY if name in shapes}
    weights = read_foreign_weights(path, config.model, shapes)
    _refuse_other_shapes(shapes, _shapes(weights), str(path))
    return weights


def fit_rows(weights: dict[str, Tensor], model: GPT, known: int | None = None) -> dict[str, Tensor]:
    """Return the weights with as many rows of the vocabulary as the model has, and no more positions.

    Added rows pad the vocabulary: no token uses them. Removed are such rows, and positions beyond block_size.
    Tokens from `known` on are new to the weights: the model keeps its own rows for them.
    """
    fitted, own = dict(weights), model.state_dict()
    for name in (*VOCABULARY, POSITIONS):
        if name in own and name in weights:
            missing = len(own[name]) - len(weights[name]) if name != POSITIONS else 0
            fitted[name] = functional.pad(weights[name][: len(own[name])], (0, 0, 0, max(missing, 0)))
            if known is not None and name != POSITIONS and known < model.vocab_size:
                fitted[name] = torch.cat([fitted[name][:known].to(own[name]), own[name][known:]])
    return fitted


def unusable(folder: Path, reason: object) -> UserFault:
    """Return the fault for a checkpoint that can't be used."""
    return UserFault(
        f"the checkpoint {folder} can't be used: {reason}. Use another one (of a run: which=latest, or the folder "
        "of an earlier step)"
    )


def read_file(folder: Path, name: str) -> bytes:
    """Return a file of a checkpoint. The bytes returned are the very bytes that were compared with the manifest.

    Raises:
        UserFault: it is missing, no plain file, not in the manifest, or other than the manifest says.
    """
    try:
        entry = store.read_manifest(folder)["files"].get(name)
        if not isinstance(entry, dict):
            raise unusable(folder, f"its manifest has no {name}")
        most, path = MAX_BYTES.get(name, MEMORY), folder / name
        size = store.read_patiently(path, lambda file: os.fstat(file.fileno()).st_size)
        if size > most:  # before anything is read: a sparse file can be of any size
            raise unusable(folder, f"{name} is {size:,} bytes; at most {most:,} make sense")
        whole = size == entry.get("bytes")
        content = store.read_patiently(path, lambda file: file.read(size + 1)) if whole else b""
    except DamagedCheckpoint as error:
        raise unusable(folder, error) from None
    if not whole or hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise unusable(folder, f"{name} changed after it was written: its size or SHA-256 is not the manifest's")
    return content


def read_json(folder: Path, name: str) -> Any:
    """Return the content of a checkpoint's JSON file.

    Raises:
        UserFault: as `read_file`; or it is no JSON.
    """
    content = read_file(folder, name)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise unusable(folder, f"{name} is no JSON ({type(error).__name__}){pack.looks_like(content)}") from None


def read_state(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's state.json.

    Raises:
        UserFault: as `read_json`; or it holds no mapping.
    """
    state = read_json(folder, STATE)
    if not isinstance(state, dict):
        raise unusable(folder, f"{STATE} is no mapping")
    return state


def read_config(folder: Path) -> TrainConfig:
    """Return the config of a checkpoint. Its values are taken as they stand: nothing in them is resolved or called.

    Raises:
        UserFault: as `read_json`; or it holds a wrong value, or a model that can't be.
    """
    mapping = read_json(folder, CONFIG)
    try:
        flat = flatten(mapping, settings(TrainConfig)) if isinstance(mapping, dict) else {}
        # Another version has other settings; of those that this one lacks, only the model's matter here.
        known = {key: value for key, value in flat.items() if key in settings(TrainConfig)}
        strange = sorted(key for key in flat.keys() - known.keys() if not OTHER_SETTING.fullmatch(key))
        config, wrong = read(TrainConfig, known if flat else mapping)
    except RecursionError:
        raise unusable(folder, f"{CONFIG} is nested too deep") from None
    if strange:
        raise unusable(folder, f"{CONFIG} holds {shown(strange[0])}, which is no setting of this minigpt")
    if wrong:
        raise unusable(folder, f"{CONFIG}: {wrong[0].sentence}")
    # Only the model of the config matters here; its paths belong to another machine.
    for fault in find_faults(TrainConfig(model=config.model)):
        if all(key.startswith("model.") for key in fault.keys):
            raise unusable(folder, f"{CONFIG}: {fault.sentence}")
    return config


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a checkpoint.

    Raises:
        UserFault: as `read_json`; or it is no tokenizer of ours.
    """
    content = read_json(folder, TOKENIZER)
    try:
        return load_tokenizer(content)
    except UserFault as fault:
        raise unusable(folder, f"{TOKENIZER}: {fault}") from None


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's safetensors file, or of its parts put together.

    Raises:
        UserFault: as `read_file`; or it is no safetensors file.
    """
    if in_parts(folder):
        files = TensorFiles(folder, name)
        tensors = {key: torch.empty(shape, dtype=files.dtypes[key]) for key, shape in files.shapes.items()}
        files.fill(tensors)
        return tensors
    return pack.unpack_tensors(read_file(folder, name), f"{folder / name}")


def in_parts(folder: Path) -> bool:
    """Return whether several processes wrote a checkpoint's tensors, each a part of them.

    Raises:
        UserFault: its manifest is damaged.
    """
    return not lists(folder, MODEL)


def lists(folder: Path, name: str) -> bool:
    """Return whether a checkpoint's manifest lists a file of this name.

    Raises:
        UserFault: its manifest is damaged.
    """
    try:
        return name in store.read_manifest(folder)["files"]
    except DamagedCheckpoint as error:
        raise unusable(folder, error) from None


def expected_shapes(config: ModelConfig, vocab_size: int, most_tensors: int) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a model's weights, at no cost in memory.

    Args:
        config: of the model.
        vocab_size: of its tokenizer.
        most_tensors: the tensors of the file to compare with: more layers than that are not listed.
    """
    one = empty_gpt(replace(config, n_layer=1), vocab_size, device="meta")
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in one.state_dict().items():
        layers = range(min(config.n_layer, most_tensors + 1)) if name.startswith("blocks.0.") else range(1)
        shapes |= {name.replace("blocks.0.", f"blocks.{layer}.", 1): tuple(tensor.shape) for layer in layers}
    return shapes


def load_weights(model: GPT, weights: dict[str, Tensor] | TensorFiles, origin: str) -> None:
    """Copy weights into a model of the same shape; into a sharded model, the rows that this process holds.

    Raises:
        UserFault: names or shapes differ, or a weight is not finite.
    """
    own = model.state_dict()
    if isinstance(weights, TensorFiles):
        _refuse_other_shapes(_shapes(own), weights.shapes, origin)
        weights.fill(own)
    else:
        _refuse_other_shapes(_shapes(own), _shapes(weights), origin)
        for name, tensor in own.items():
            local(tensor).copy_(weights[name][held_rows(tensor)])
    mine = {name: local(tensor) for name, tensor in own.items()}
    broken = pack.first_non_finite(mine)  # after the copy: a number that is finite in fp64 need not be in fp32
    if broken is not None:
        raise UserFault(f"the checkpoint {origin} holds non-finite weights ({broken}). Use an earlier checkpoint")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _refuse_other_shapes(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], origin: str) -> None:
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if differing:
        name = differing[0]
        raise UserFault(
            f"the weights in {origin} are not of this model's shape: {shown(name)} is {found.get(name, 'missing')} "
            f"there, {expected.get(name, 'not part of the model')} here ({len(differing)} differ). "
            "Use the model=, tokenizer= and model.* values that the weights were trained with"
        )
