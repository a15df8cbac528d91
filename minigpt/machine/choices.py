"""The choices that a config may leave to minigpt: device, precision, kernels, micro-batch, threads.

Every choice is a pure function of config and hardware, never of a timing, so that the same command on the same
machine gives the same bits. The choices are written to the run's choices.json and kept when it continues there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from minigpt.config.schema import TrainConfig
from minigpt.machine.hardware import Hardware, memory_of_device
from minigpt.machine.memory import step_memory

LARGE_VOCABULARY = 16_384  # from this size on logits may be made in chunks
LOGITS_AT_ONCE = 1 << 26  # in fp32 a quarter of a gigabyte; enough rows to keep any device busy
USABLE = {"cpu": 0.5}  # of the memory that others use, too; 0.8 of any other device's
BUSY_TOKENS = 8192  # a micro-batch of so many tokens keeps any device busy


@dataclass(frozen=True)
class Choices:
    """What was chosen, by the config or for it."""

    device: str
    devices: int
    precision: Literal["fp32", "bf16", "fp16", "fp64"]
    compile: bool
    attention_kernel: Literal["explicit", "fused"]
    micro_batch: int  # sequences per forward pass and device
    accumulate: int  # forward passes per optimizer step
    validation_batch: int
    threads: int
    float32_products: Literal["highest", "medium"] = "highest"  # torch's setting: medium if it is as exact, and faster
    loss_chunk: int = 0  # rows of logits that exist at a time; 0: all of a micro-batch
    reshard: bool = True  # sharded weights: gathered ones are freed after use, gradients reduced each micro-batch
    hardware: str = ""  # for which the choices were made


def choose(config: TrainConfig, hardware: Hardware, vocab_size: int) -> Choices:
    """Decide what the config leaves open.

    - precision: bf16 where the hardware multiplies it fast (recent NVIDIA; x86 with AVX512-BF16 or AMX), fp16 on other
      NVIDIA GPUs (T4, V100) whose losses can be scaled, which sharded weights prevent, else fp32.
    - compile: on CUDA; on a CPU where the run is long enough to win back the half minute that it takes to start.
    - float32 products: by oneDNN if that is faster and as exact.
    - attention kernel: fused on accelerators; explicit on CPUs up to a context of 512, where the fused
      kernel's backward pass is the slower one.
    - logits: some rows at a time if the vocabulary is large and fewer than 8192 tokens fit with all of their logits.
    - micro-batch: the largest part of a step that fits the usable memory by the formula of memory.py; with sharded
      weights, gathered ones are freed after use where they are needed once a step, or where memory is short.
    """
    trainer, model, device = config.trainer, config.model, hardware.device
    precision = trainer.precision
    if precision == "auto":
        scales = device == "cuda" and not trainer.sharded
        precision = "bf16" if hardware.bf16 and device != "mps" else "fp16" if scales else "fp32"
    kernel = trainer.attention_kernel
    if kernel == "auto":
        kernel = "explicit" if device == "cpu" and model.block_size <= 512 else "fused"
    choices = Choices(
        device=device,
        devices=trainer.nodes * trainer.devices,
        precision=precision,
        compile=trainer.compile == "on" or (trainer.compile == "auto" and _compiling_pays(config, device)),
        attention_kernel=kernel,
        micro_batch=1,
        accumulate=config.batch_tokens // model.block_size // (trainer.nodes * trainer.devices),
        validation_batch=1,
        threads=trainer.threads or hardware.asked_threads or max(1, hardware.cores // trainer.devices),
        float32_products="medium" if hardware.onednn_fp32 else "highest",
        loss_chunk=0 if trainer.loss_chunk in ("auto", "off") else int(trainer.loss_chunk),
        hardware=hardware.name,
    )
    room = usable_memory(config, hardware)
    choices = _largest_micro_batch(config, choices, vocab_size, room)
    if trainer.loss_chunk == "auto" and vocab_size >= LARGE_VOCABULARY:
        sequences = choices.micro_batch * choices.accumulate
        enough = min(trainer.micro_batch or sequences, max(1, BUSY_TOKENS // model.block_size))
        if step_memory(config, choices, vocab_size).peak > room or choices.micro_batch < enough:
            chunked = replace(choices, loss_chunk=max(1, LOGITS_AT_ONCE // vocab_size // 128) * 128)
            choices = _largest_micro_batch(config, chunked, vocab_size, room)
    held = step_memory(config, choices, vocab_size)
    free = max(0.0, room - held.weights - held.gradients - held.optimizer)
    at_once = 4096 if device == "cpu" else 16384  # tokens of a validation batch: on a CPU they fit the caches
    largest = min(256, at_once // model.block_size, int(free // (12 * vocab_size * model.block_size)))
    return replace(choices, validation_batch=config.validate.batch or max(1, largest))


def _largest_micro_batch(config: TrainConfig, choices: Choices, vocab_size: int, room: float) -> Choices:
    """Return the choices with the largest micro-batch that fits; one sequence if none does."""
    trainer, sequences = config.trainer, choices.micro_batch * choices.accumulate
    sizes = [size for size in range(sequences, 0, -1) if sequences % size == 0]
    for size in [trainer.micro_batch] if trainer.micro_batch else sizes:
        frees = {"on": [True], "off": [False]}.get(trainer.reshard) or ([True] if size == sequences else [False, True])
        for reshard in frees if trainer.sharded else [True]:
            candidate = replace(choices, micro_batch=size, accumulate=sequences // size, reshard=reshard)
            if step_memory(config, candidate, vocab_size).peak <= room:
                return candidate
    return candidate


def usable_memory(config: TrainConfig, hardware: Hardware) -> float:
    """Return the bytes of each device that are planned with: libraries, fragmentation and others take the rest."""
    return USABLE.get(hardware.device, 0.8) * memory_of_device(hardware, config.trainer.devices)


def _compiling_pays(config: TrainConfig, device: str) -> bool:
    """Return whether compiling pays: it saves passes over the activations, and takes half a minute at the start.

    On two cores it saves 3 to 45 ns for each token x layer x width (docs/PERFORMANCE.md): at the limit below, most
    trainings gain a minute, and none loses more than some seconds.
    """
    if device != "cpu" or config.model.dropout:  # on a CPU compiled code draws dropout's random numbers one by one
        return device == "cuda"
    tokens = config.trainer.max_tokens or (config.trainer.max_steps or 0) * config.batch_tokens
    return tokens * config.model.n_layer * config.model.n_embd >= 3e9


def keep_choices(saved: Mapping[str, Any] | None, config: TrainConfig, hardware: Hardware, vocab_size: int) -> Choices:
    """Return the choices that a run continues with: as choices.json has them, except for what the command now names.

    Choices that were made for other hardware, for another number of devices, or by another version are made anew.
    """
    trainer, choices = config.trainer, choose(config, hardware, vocab_size)
    if saved is None or saved.keys() != Choices.__dataclass_fields__.keys():
        return choices
    is_elsewhere = any(saved[name] != getattr(choices, name) for name in ("hardware", "device", "devices"))
    if is_elsewhere or (saved["precision"] == "fp16" and trainer.sharded):
        return choices
    names = ("compile", "attention_kernel", "loss_chunk", "reshard")
    named = {"hardware", *(name for name in names if getattr(trainer, name) != "auto")}
    named |= {"micro_batch", "accumulate"} if trainer.micro_batch else set()
    named |= {"threads"} if trainer.threads or hardware.asked_threads else set()
    named |= {"validation_batch"} if config.validate.batch else set()
    return replace(choices, **{name: value for name, value in saved.items() if name not in named})
