"""From the command line of a benchmark to a checked plan. Torch is not imported."""

import importlib.util
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from minigpt.config.command_line import train_arguments
from minigpt.config.commands import BenchmarkConfig
from minigpt.config.compose import compose
from minigpt.faults import UserFault
from minigpt.launcher import launched


@dataclass(frozen=True)
class Preset:
    """A model size for which others publish figures, and the length of its measurements."""

    settings: tuple[str, ...]  # of minigpt train
    steps: int  # timed in each measurement
    vocab_size: int
    new_tokens: int  # written after each prompt when sampling


def _sizes(n_layer: int, n_head: int, n_embd: int, block_size: int, batch: int) -> tuple[str, ...]:
    return (
        f"model.n_layer={n_layer}", f"model.n_head={n_head}", f"model.n_embd={n_embd}",
        f"model.block_size={block_size}", f"batch_tokens={batch * block_size}", f"trainer.micro_batch={batch}",
        "model.bias=false", "model.activation=gelu", "model.dropout=0", "schedule.warmup_steps=10",
    )  # fmt: skip


GPT2 = ("optimizer.lr=6e-4", "optimizer.beta2=0.95")
PRESETS = {
    "c0": Preset(_sizes(4, 4, 128, 64, 12), steps=300, vocab_size=65, new_tokens=48),
    "c1": Preset(_sizes(6, 6, 384, 256, 16), steps=40, vocab_size=65, new_tokens=240),
    "124m": Preset((*_sizes(12, 12, 768, 1024, 32), *GPT2), steps=60, vocab_size=50257, new_tokens=64),
    "350m": Preset((*_sizes(24, 16, 1024, 1024, 16), *GPT2), steps=40, vocab_size=50257, new_tokens=64),
}
GPU = {"124m": "training,variants,resuming,sampling", "350m": "training"}  # what preset=gpu measures
WARM_UP = 10  # optimizer steps at the beginning of each measurement that don't count

# Settings of minigpt train that begin so are given by the benchmark itself.
TAKEN = ("data", "tokenizer", "run", "init", "experiment", "validate", "trainer.max_")
ONE_DEVICE = ("trainer.devices", "trainer.nodes", "trainer.str")  # these too, except with what=scaling


@dataclass(frozen=True)
class Plan:
    """The benchmark of one size, checked."""

    config: BenchmarkConfig  # with the preset's numbers where the user gave none, and absolute paths
    vocab_size: int
    settings: tuple[str, ...]  # of minigpt train: the preset's, then those that the user typed


def read_plans(arguments: list[str]) -> list[Plan]:
    """Return the benchmark that a command line describes, a plan for each size.

    Raises:
        UserFault: it has faults, all of which are named.
        SystemExit: code 0, after --help has printed.
    """
    arguments = arguments or ["--help"]
    scaling = _last(arguments, "what") == "scaling"
    given = _last(arguments, "preset")
    faults = [
        f"{argument.partition('=')[0]} is the benchmark's own to give: it makes its own text, and runs in a temporary "
        "folder on one device. Leave it out; preset=NAME gives the size, steps=N the length"
        for argument in arguments
        if argument.startswith(TAKEN if scaling else TAKEN + ONE_DEVICE)
    ]
    plans = []
    if scaling and given == "gpu":
        faults.append("preset=gpu has parts of its own. For what=scaling give preset=124m or preset=350m")
    for name in GPU if given == "gpu" else [given or "c0"]:
        preset = PRESETS.get(name, PRESETS["c0"])
        own = preset.settings + (_batch_of_all(preset, arguments) if scaling else ())
        try:
            config = compose("benchmark", [*own, *arguments])
        except UserFault as fault:
            faults += fault.faults
            continue
        if config.huggingface and importlib.util.find_spec("transformers") is None:
            faults.append(f"huggingface=true needs transformers. Type: {sys.executable} -m pip install transformers")
        everything = config.preset == "gpu"
        config = replace(
            config,
            preset=name,
            what=GPU[name] if everything else config.what,
            steps=config.steps or preset.steps,
            new_tokens=config.new_tokens or preset.new_tokens,
            nanogpt=_full_path(config.nanogpt),
            write_to=_full_path(config.write_to or ("." if everything or scaling else None)),
        )
        settings = (*own, *train_arguments("benchmark", arguments))
        plans.append(Plan(config, preset.vocab_size, settings))
    if faults:
        raise UserFault(*dict.fromkeys(faults))
    return plans


def _last(arguments: list[str], key: str) -> str:
    """Return the last value that a command line gives a setting, or ""."""
    parted = (argument.lstrip("+").partition("=") for argument in reversed(arguments))
    return next((text for name, _, text in parted if name == key), "")


def _batch_of_all(preset: Preset, arguments: list[str]) -> tuple[str, ...]:
    """Return the preset's batch for each of the devices that a command line, torchrun or srun asks for."""
    nodes, devices = (_last(arguments, f"trainer.{name}") for name in ("nodes", "devices"))
    found = launched("ddp", int(nodes) if nodes.isdigit() else 1, int(devices) if devices.isdigit() else 1)
    world = int(nodes or 1) * int(devices or 1) if (nodes + devices).isdigit() else 1
    world = max(world, found.world_size if found else 1)
    (batch,) = (int(each.partition("=")[2]) for each in preset.settings if each.startswith("batch_tokens="))
    return (f"batch_tokens={world * batch}",)


def _full_path(text: str | None) -> str | None:
    return str(Path(os.path.expanduser(text)).resolve()) if text else None
