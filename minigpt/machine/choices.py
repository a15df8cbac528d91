"""The choices that a config may leave to minigpt: device, precision, kernels, micro-batch, threads.

Every choice is a pure function of config and hardware, never of a timing, so that the same command on the same
machine gives the same bits. The choices are written to the run's choices.json and kept when it continues there.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from minigpt.config.convert import misfit, shown
from minigpt.config.schema import SHARDED, TrainConfig
from minigpt.faults import UserFault
from minigpt.machine.hardware import MAX_THREADS, Hardware
from minigpt.model.counting import activation_bytes, chunk_bytes, parameter_count
from minigpt.rundir.run_directory import RunDirectory

LARGE_VOCABULARY = 16_384  # from this size on logits may be made in chunks
LOGITS_AT_ONCE = 1 << 26  # in fp32 a quarter of a gigabyte; enough rows to keep any device busy
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
    hardware: str = ""  # for which the choices were made


def choose(config: TrainConfig, hardware: Hardware, vocab_size: int) -> Choices:
    """Decide what the config leaves to us.

    - precision: bf16 where the hardware multiplies it fast (recent NVIDIA; x86 with AVX512-BF16 or AMX), fp16 on other
      NVIDIA GPUs (T4, V100) whose losses can be scaled, which sharded weights prevent, else fp32.
    - compile: on CUDA; on a CPU where the run is long enough to win back the half minute that it takes to start.
    - float32 products: by oneDNN if that is faster and as exact.
    - attention kernel: fused on accelerators; explicit on CPUs up to a context of 512, where the fused
      kernel's backward pass is the slower one.
    - logits: some rows at a time if the vocabulary is large and fewer than 8192 tokens fit with all of their logits.
    - micro-batch: the largest part of a step whose activations fit half of the memory that weights and optimizer
      leave (a quarter on a CPU, whose memory others use too). It is tried before step 1.
    """
    trainer, model = config.trainer, config.model
    device = hardware.device
    precision = trainer.precision
    if precision == "auto":
        scales = device == "cuda" and trainer.strategy not in SHARDED
        precision = "bf16" if hardware.bf16 and device != "mps" else "fp16" if scales else "fp32"
    compile_model = trainer.compile == "on" or (trainer.compile == "auto" and _compiling_pays(config, device))
    kernel = trainer.attention_kernel
    if kernel == "auto":
        kernel = "explicit" if device == "cpu" and model.block_size <= 512 else "fused"
    sequences = config.batch_tokens // model.block_size // (trainer.nodes * trainer.devices)
    room = _room_for_activations(config, hardware, vocab_size)
    masked = config.data.mask_documents
    options: dict[str, Any] = {"precision": precision, "kernel": kernel, "masked": masked}
    per_sequence = activation_bytes(model, vocab_size, **options)
    loss_chunk = _loss_chunk(config, vocab_size, sequences, at_most=room // per_sequence)
    if loss_chunk:
        room = max(0, room - chunk_bytes(model, vocab_size, precision=precision, chunk=loss_chunk))
        per_sequence = activation_bytes(model, vocab_size, **options, chunk=loss_chunk)
    at_once = 4096 if device == "cpu" else 16384  # tokens of a validation batch: on a CPU they fit the caches
    divisors = [size for size in range(1, sequences + 1) if sequences % size == 0]
    micro_batch = trainer.micro_batch or max(size for size in divisors if size <= max(1, room // per_sequence))
    return Choices(
        device=device,
        devices=trainer.nodes * trainer.devices,
        precision=precision,
        compile=compile_model,
        attention_kernel=kernel,
        micro_batch=micro_batch,
        accumulate=sequences // micro_batch,
        validation_batch=config.validate.batch
        or max(1, min(256, at_once // model.block_size, room // (12 * vocab_size * model.block_size))),
        threads=trainer.threads or hardware.asked_threads or max(1, hardware.cores // trainer.devices),
        float32_products="medium" if hardware.onednn_fp32 else "highest",
        loss_chunk=loss_chunk,
        hardware=hardware.name,
    )


def _loss_chunk(config: TrainConfig, vocab_size: int, sequences: int, *, at_most: int) -> int:
    """Return the rows of logits at a time, or 0 for all of them.

    Args:
        config: what is asked for.
        vocab_size: V.
        sequences: of a step on one device.
        at_most: sequences that fit with all of their logits.
    """
    asked = config.trainer.loss_chunk
    if asked != "auto":
        return 0 if asked == "off" else int(asked)
    enough = min(config.trainer.micro_batch or sequences, max(1, BUSY_TOKENS // config.model.block_size))
    if vocab_size < LARGE_VOCABULARY or enough <= at_most:
        return 0
    return rows_at_once(vocab_size)


def rows_at_once(vocab_size: int) -> int:
    """Return the rows of logits in a chunk, if the config leaves them open."""
    return max(1, LOGITS_AT_ONCE // vocab_size // 128) * 128


def _compiling_pays(config: TrainConfig, device: str) -> bool:
    """Return whether compiling pays: it saves passes over the activations, and takes half a minute at the start.

    On two cores it saves 3 to 14 ns for each number of the stream (measured: plain and rotary attention, widths 128
    and 384), which is a minute at the limit below.
    """
    if device != "cpu" or config.model.dropout:  # on a CPU compiled code draws dropout's random numbers one by one
        return device == "cuda"
    tokens = config.trainer.max_tokens or (config.trainer.max_steps or 0) * config.batch_tokens
    return tokens * config.model.n_layer * config.model.n_embd >= 2e10


def keep_choices(saved: Mapping[str, Any] | None, config: TrainConfig, hardware: Hardware, vocab_size: int) -> Choices:
    """Return the choices that a run continues with: as saved, except for those that the command now names.

    Choices that were made for other hardware, or for another number of devices, are made anew.

    Args:
        saved: the content of choices.json; None for a new run.
        config: of the run.
        hardware: that it continues on.
        vocab_size: of its tokenizer.

    Raises:
        UserFault: the saved choices are invalid.
    """
    choices = choose(config, hardware, vocab_size)
    if saved is None:
        return choices
    saved = {"loss_chunk": 0, **saved}  # an earlier version made all logits at once
    there = read_choices(saved, config)
    elsewhere = there.hardware not in ("", choices.hardware) or there.device != choices.device
    unfit = there.precision == "bf16" and not hardware.bf16 and config.trainer.precision == "auto"
    unfit |= there.precision == "fp16" and config.trainer.strategy in SHARDED
    rounded = there.float32_products == "medium" and not hardware.onednn_fp32
    if elsewhere or unfit or rounded or there.devices != choices.devices:
        return choices
    explicit = {
        "compile": config.trainer.compile != "auto",
        "attention_kernel": config.trainer.attention_kernel != "auto",
        "micro_batch": config.trainer.micro_batch > 0,
        "accumulate": config.trainer.micro_batch > 0,
        "loss_chunk": config.trainer.loss_chunk != "auto",
        "threads": config.trainer.threads > 0 or hardware.asked_threads > 0,
        "validation_batch": config.validate.batch > 0,
        "hardware": True,
    }
    return replace(choices, **{name: value for name, value in saved.items() if not explicit.get(name)})


def tell_changed_choices(run: RunDirectory, saved: Mapping[str, Any] | None, choices: Choices) -> None:
    """Print and write to events.jsonl which choices have changed in a run: they change the last bits."""
    now = asdict(choices)
    changed = {name: value for name, value in (saved or {}).items() if value != now[name]}
    if "devices" in changed:
        note = "each step trains on the same tokens, but sums are taken in another order: the last bits may differ"
        print(f"Devices    {choices.devices} instead of {changed['devices']}: {note}")
        run.event("devices_changed", was=changed.pop("devices"), now=choices.devices)
    if changed:
        listed = ", ".join(f"{name} {shown(was)} -> {shown(now[name])}" for name, was in changed.items())
        print(f"Choices    changed since the run was last started, so the last bits may differ: {listed}")
        run.event("choices_changed", was=changed, now={name: now[name] for name in changed})


def read_choices(saved: Mapping[str, Any], config: TrainConfig) -> Choices:
    """Return saved choices, after checking that they are possible for this config: the file may be foreign.

    Raises:
        UserFault: they are not.
    """
    sequences = config.batch_tokens // config.model.block_size
    try:
        if fault := misfit(Choices, saved):
            raise ValueError(fault)
        choices = Choices(**saved)
        if not 1 <= choices.threads <= MAX_THREADS or not 1 <= choices.validation_batch <= 2**24:
            raise ValueError(f"threads={choices.threads}, validation_batch={choices.validation_batch}")
        if choices.devices * choices.accumulate * choices.micro_batch != sequences:
            made = f"{choices.devices} x {choices.accumulate} x {choices.micro_batch}"
            raise ValueError(f"{made} windows, and a step has {sequences}")
    except (TypeError, ValueError) as fault:
        remedy = "Put the file back as it was, or remove it: then they are made anew, and bits may differ from here on"
        raise UserFault(f"choices.json in the run directory holds what no run chooses ({fault}). {remedy}") from None
    return choices


def _room_for_activations(config: TrainConfig, hardware: Hardware, vocab_size: int) -> int:
    """Return how many bytes of one device activations may take."""
    # Weights, gradients and two averages in fp32.
    left = max(0, hardware.memory_bytes - 16 * parameter_count(config.model, vocab_size))
    return left // (4 * config.trainer.devices) if hardware.device == "cpu" else left // 2
