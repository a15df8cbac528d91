"""Rules of a training: its folder, its batch, its devices, its end, and what it begins with."""

import importlib.util
import math
import re
import sys
from collections.abc import Iterator

from minigpt.config.convert import shown
from minigpt.config.rules.rule import NOTES, nearest_multiples, not_there, rule
from minigpt.config.schema import SHARDED
from minigpt.config.sources import is_begun


@rule("experiment")
def experiment_names_a_folder(experiment: str) -> Iterator[str]:
    if not re.fullmatch(r"[\w][\w.+-]*(/[\w][\w.+-]*)*", experiment) or len(experiment) > 100:
        yield f"experiment={shown(experiment)} names a folder: letters, digits, . _ + - only, 100 at most. Rename it."


@rule("init.experiment")
def first_experiment_has_a_name(experiment: str | None) -> Iterator[str]:
    if experiment is not None and not re.fullmatch(r"[\w.+/-]+", experiment):
        yield f"init.experiment={shown(experiment)} names no file of configs/experiment/. Leave it out."


@rule("init.experiment", "init.from", "trainer.devices", "trainer.nodes")
def one_device_trains_in_stages(experiment: str | None, source: str | None, devices: int, nodes: int) -> Iterator[str]:
    if experiment is not None and source is None and devices * nodes > 1:
        first = f"minigpt train experiment={experiment}"
        yield f"init.experiment={experiment} is for one device. Type {first}, then init.from=ITS_RUN on several."


@rule("batch_tokens", "model.block_size", "trainer.micro_batch", "trainer.devices", "trainer.nodes")
def batch_splits_evenly(
    batch_tokens: int, block_size: int, micro_batch: int, devices: int, nodes: int
) -> Iterator[str]:
    factors = {"model.block_size": block_size, "trainer.micro_batch": micro_batch or 1, "trainer.devices": devices}
    factors["trainer.nodes"] = nodes
    unit = math.prod(factors.values())
    if batch_tokens % unit:
        parts = " x ".join(f"{key}={number}" for key, number in factors.items() if number > 1)
        remedy = f"Use {nearest_multiples('batch_tokens', batch_tokens, unit)}."
        yield f"batch_tokens={batch_tokens} is not a multiple of {unit} tokens, {parts}. {remedy}"


@rule("trainer.devices", "trainer.nodes", "trainer.strategy")
def several_devices_need_a_strategy(devices: int, nodes: int, strategy: str) -> Iterator[str]:
    given = f"trainer.nodes={nodes} " * (nodes > 1) + f"trainer.devices={devices}"
    if nodes * devices > 1 and strategy == "auto":
        remedy = f"Type trainer=ddp {given}, or trainer=fsdp where a copy of the weights is too large"
        yield f"{given} needs trainer.strategy=ddp, fsdp or hsdp. {remedy}."
    elif nodes * devices == 1 and strategy in SHARDED:
        remedy = "Type trainer.devices=N, or leave out the strategy"
        yield f"trainer.strategy={strategy} shares weights out over several devices, got {given}. {remedy}."


@rule("trainer.devices", "trainer.nodes", "trainer.strategy", "trainer.shards")
def shards_and_copies_make_up_the_devices(devices: int, nodes: int, strategy: str, shards: int) -> Iterator[str]:
    world, parts = nodes * devices, shards or devices
    given = f"trainer.shards={shards}"
    if strategy != "hsdp" and shards:
        yield f"{given} is for trainer=hsdp, got trainer.strategy={strategy}. Leave it out."
    elif strategy == "hsdp" and world > 1 and (parts == 1 or parts == world or world % parts):
        fitting = [str(number) for number in range(2, world) if world % number == 0]
        remedy = f"Use trainer.shards={' or '.join(fitting)}" if fitting else "Use trainer=fsdp"
        yield f"{given}: {parts} devices to a copy of the weights, and several copies, are not {world}. {remedy}."


@rule("trainer.strategy", "trainer.precision", "trainer.gather", "trainer.reshard")
def sharding_fits_the_precision(strategy: str, precision: str, gather: str, reshard: str) -> Iterator[str]:
    if strategy in SHARDED and precision == "fp16":
        yield f"trainer.precision=fp16 scales losses, which trainer.strategy={strategy} can't. Use bf16 or fp32."
    elif gather == "bf16" and (strategy not in SHARDED or precision != "bf16"):
        remedy = "Add trainer=fsdp trainer.precision=bf16, or leave it out"
        yield f"trainer.gather=bf16 is for sharded weights and products in bf16. {remedy}."
    if reshard != "auto" and strategy not in SHARDED:
        yield f"trainer.reshard={reshard} is for sharded weights. Add trainer=fsdp, or leave it out."


@rule("trainer.device", "trainer.precision", "trainer.devices")
def mps_is_one_device_in_fp32(device: str, precision: str, devices: int) -> Iterator[str]:
    if device == "mps" and precision in ("bf16", "fp16", "fp64"):
        yield f"trainer.device=mps trains in fp32, got trainer.precision={precision}. Use trainer.precision=fp32."
    elif device == "mps" and devices > 1:
        yield f"trainer.device=mps is one device, got trainer.devices={devices}. Use trainer.devices=1."


@rule("trainer.max_steps", "trainer.max_tokens", "trainer.max_minutes")
def run_has_an_end(*limits: float | None) -> Iterator[str]:
    if not any(limits):
        yield "The run has no end: give trainer.max_steps, trainer.max_tokens or trainer.max_minutes."


@rule("trainer.patience", "validate.every_steps")
def patience_needs_validations(patience: int, every_steps: int) -> Iterator[str]:
    if patience and not every_steps:
        yield f"trainer.patience={patience} counts validations: set validate.every_steps, or trainer.patience=0."


@rule("logger.name")
def tensorboard_is_installed(name: str) -> Iterator[str]:
    if name == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        yield f"logger=tensorboard needs the package 'tensorboard'. Type: {sys.executable} -m pip install tensorboard"


@rule("init.from", "run.dir")
def starting_weights_are_there(source: str | None, folder: str | None) -> Iterator[str]:
    if source is not None and not is_begun(folder):  # a run that continues reads its own checkpoint
        remedy = "Give a run, a checkpoint or a model's folder. To continue a run without it, give that run's run.dir."
        yield from not_there("init.from", source, remedy)


@rule("trainer.strategy", "trainer.devices", "trainer.nodes", into=NOTES)
def ddp_has_devices(strategy: str, devices: int, nodes: int) -> Iterator[str]:
    if strategy == "ddp" and nodes * devices == 1:
        yield "trainer.strategy=ddp with trainer.devices=1 trains on one device. For more, add trainer.devices=N."


@rule("schedule.warmup_steps", "trainer.max_steps", "trainer.max_tokens", "batch_tokens", into=NOTES)
def warmup_ends(warmup_steps: int, max_steps: int | None, max_tokens: int | None, batch_tokens: int) -> Iterator[str]:
    steps = math.ceil(max_tokens / batch_tokens) if max_tokens else max_steps
    if steps is not None and warmup_steps > steps:
        remedy = f"The learning rate never reaches its peak. Try schedule.warmup_steps={steps // 10}."
        yield f"schedule.warmup_steps={warmup_steps} is longer than the run of {steps} steps. {remedy}"
