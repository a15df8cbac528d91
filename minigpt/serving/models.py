"""The models that are served, loaded as `minigpt sample` loads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.checkpoint.load import LoadedCheckpoint, load_checkpoint, load_with_adapter
from minigpt.config.commands import ServeConfig
from minigpt.config.schema import SampleConfig
from minigpt.faults import UserFault
from minigpt.machine.hardware import probe
from minigpt.model.gpt import GPT
from minigpt.sampling.command import choose_decoder, ready
from minigpt.sampling.stream import say
from minigpt.serving.engine import Served


def load_models(config: ServeConfig) -> list[Served]:
    """Load every checkpoint, and a model for each adapter on one of them; equal names get a number.

    Raises:
        UserFault: no such checkpoint, adapter or device.
    """
    bases = [load_checkpoint(path, config.which) for path in config.checkpoint]
    over = [load_with_adapter(path, config.which, bases) for path in config.adapter]
    for each in over:
        say(f"{each.path}: {in_common(each.model, bases)}")
    options = SampleConfig(device=config.device, precision=config.precision, compile=config.compile)
    models: list[Served] = []
    for loaded in [*bases, *over]:
        ready(loaded, options)
        refuse_too_large(loaded.model, config)
        name = unlike(name_of(loaded.path), [served.name for served in models])
        models.append(Served(name, loaded, choose_decoder(options, loaded.model), config.rows))
    return models


def in_common(model: GPT, bases: Sequence[LoadedCheckpoint]) -> str:
    """Return how many weights a model with an adapter shares in memory with the model of its training."""
    shared = {id(parameter) for base in bases for parameter in base.model.parameters()}
    sizes = [(parameter.numel(), id(parameter) in shared) for parameter in model.parameters()]
    common, whole = sum(size for size, is_shared in sizes if is_shared), sum(size for size, _ in sizes)
    return f"an adapter, merged: {common:,} of {whole:,} weights are in common with its model, the others a copy"


def refuse_too_large(model: GPT, config: ServeConfig) -> None:
    """Refuse a KV cache that the memory can't hold: an imported model may read 100,000 tokens at once.

    Raises:
        UserFault: it is larger than half of the memory.
    """
    attention: Any = model.blocks[0].attention
    numbers = 2 * len(model.blocks) * attention.n_kv_head * attention.head_dim * model.config.block_size
    a_row = numbers * model.token_embedding.weight.element_size()
    memory = probe(config.device).memory_bytes
    if config.rows * a_row > memory / 2:
        texts = f"rows={config.rows} texts of up to {model.config.block_size:,} tokens"
        needs = f"{texts} need {config.rows * a_row / 1e9:,.1f} GB"
        fits = int(memory / 2 / a_row)
        remedy = f"Use rows={fits}" if fits else "Export it (minigpt export), and serve it with another program"
        raise UserFault(f"{needs} for keys and values; this machine has {memory / 1e9:,.1f} GB. {remedy}")


def name_of(path: Path) -> str:
    """Return the name of a checkpoint: its run's, else that of its folder or file."""
    path = path.resolve()
    return path.parents[1].name if path.parent.name == "checkpoints" else path.name


def unlike(name: str, taken: Sequence[str]) -> str:
    """Return the name, with a number if it is taken."""
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 2))
    return name if name not in taken else next(each for each in numbered if each not in taken)
