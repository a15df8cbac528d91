"""What the machine has, and what a run therefore chooses where the config says `auto`.

Every choice is a pure function of config and hardware, never of a timing, so that the same command on the same
machine gives the same bits. The choices are written to the run's choices.json and kept when it continues.
"""

import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from minigpt.config.convert import misfit, shown
from minigpt.config.schema import TrainConfig
from minigpt.machine.cores import usable_cores

# Dense matrix peaks of real chips in TFLOP/s (without sparsity): (bf16 or fp16, fp32 as PyTorch runs it by default).
# Source: the makers' data sheets.
PEAKS: dict[str, tuple[float, float]] = {
    r"B200|GB200": (2250.0, 80.0),
    r"H100 NVL": (835.0, 60.0),
    r"H100.*PCIe": (756.0, 51.0),
    r"H200|H100|GH200": (989.4, 66.9),
    r"A100": (312.0, 19.5),
    r"A10G": (70.0, 31.5),
    r"A10\b": (125.0, 31.2),
    r"L40S": (362.0, 91.6),
    r"L4\b": (121.0, 30.3),
    r"V100": (125.0, 15.7),
    r"T4\b": (65.0, 8.1),
    r"RTX 5090": (209.5, 104.8),
    r"RTX 4090": (165.2, 82.6),
    r"RTX 4080$": (97.5, 48.7),
    r"RTX 3090$": (71.0, 35.6),
    r"RTX A6000": (154.8, 38.7),
    r"RTX 6000 Ada": (364.2, 91.1),
}


@dataclass(frozen=True)
class Hardware:
    """What a run can use."""

    device: str  # cuda | mps | cpu: the best there is
    name: str  # of the accelerator, or of the processor's architecture
    cores: int  # CPU cores this process may use
    bf16: bool  # has fast bf16 products
    memory_bytes: int  # of the device
    onednn_fp32: bool = False  # fp32 products are faster through oneDNN, and as exact


def probe(device: str = "auto") -> Hardware:
    """Look at the machine. `device` other than auto looks at that device."""
    cores = usable_cores()
    if device in ("auto", "cuda") and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return Hardware("cuda", properties.name, cores, torch.cuda.is_bf16_supported(False), properties.total_memory)
    if device in ("auto", "mps") and torch.backends.mps.is_available():
        return Hardware("mps", "Apple " + platform.machine(), cores, False, _main_memory())
    return Hardware("cpu", f"{platform.machine()} CPU", cores, _cpu_bf16(), _main_memory(), _onednn_fp32())


def _cpu_bf16() -> bool:
    """Whether the processor multiplies bf16 in hardware: without it bf16 is many times slower than fp32."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _onednn_fp32() -> bool:
    """Whether to have fp32 products made by oneDNN (torch's precision "medium") instead of MKL.

    On AMD MKL uses only AVX2; oneDNN with AVX-512 was measured at twice its speed. "medium" allows rounding to bf16,
    which oneDNN does where the processor has AMX (error 2e-3 instead of 3e-7, measured): so its products are tried.
    """
    return _vendor() == "AuthenticAMD" and medium_is_exact()


def _vendor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.split(":")[1].strip() for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return ""


def medium_is_exact() -> bool:
    """Whether products under torch's float32 precision "medium" keep fp32's accuracy on this processor."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        product = a @ b
    finally:
        torch.set_float32_matmul_precision(before)
    exact = a.double() @ b.double()
    return float((product - exact).norm() / exact.norm()) < 1e-6


def _main_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8 << 30


def peak_flops(hardware: Hardware, precision: str) -> float | None:
    """The device's dense peak in FLOP/s for MFU, or None when it is not in the table."""
    if hardware.device != "cuda":
        return None
    for pattern, (half, single) in PEAKS.items():
        if re.search(pattern, hardware.name):
            return 1e12 * (half if precision == "bf16" else single)
    return None


def flops_per_token(config: TrainConfig, vocab_size: int) -> float:
    """Forward and backward FLOPs of one training token: 6 per matrix weight, 12 L C T for attention.

    Look-ups of embeddings cost nothing; the tied head counts once.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    model = config.model
    matrices = 12 * model.n_layer * model.n_embd**2 + math.ceil(vocab_size / 64) * 64 * model.n_embd
    return 6.0 * matrices + 12.0 * model.n_layer * model.n_embd * model.block_size


@dataclass(frozen=True)
class Choices:
    """What was chosen, by the config or for it."""

    device: str
    devices: int
    precision: str  # fp32 | bf16 | fp64
    compile: bool
    attention_kernel: str
    micro_batch: int  # sequences per forward pass and device
    accumulate: int  # forward passes per optimizer step
    validation_batch: int
    threads: int
    float32_products: str = "highest"  # torch's precision: highest, or medium where that is as exact and faster


def choose(config: TrainConfig, hardware: Hardware, vocab_size: int) -> Choices:
    """Decide what the config leaves to us.

    - precision: bf16 where the hardware multiplies it fast (recent NVIDIA; x86 with AVX512-BF16 or AMX), else fp32.
    - compile: on CUDA; on a CPU where the run is long enough to win back the half minute that it takes to start.
    - float32 products: by oneDNN where that is faster and as exact.
    - attention kernel: fused on accelerators; explicit on CPUs up to a context of 512, where the fused
      kernel's backward pass is the slower one.
    - micro-batch: the largest part of a step whose activations fit half of the memory that weights and optimizer
      leave (a quarter on a CPU, whose memory others use too). It is tried before step 1.
    """
    trainer, model = config.trainer, config.model
    device = hardware.device
    precision = trainer.precision
    if precision == "auto":
        precision = "bf16" if hardware.bf16 and device != "mps" else "fp32"
    compile_model = trainer.compile == "on" or (trainer.compile == "auto" and _compiling_pays(config, device))
    kernel = trainer.attention_kernel
    if kernel == "auto":
        kernel = "explicit" if device == "cpu" and model.block_size <= 512 else "fused"
    sequences = config.batch_tokens // model.block_size // trainer.devices
    room = _room_for_activations(config, hardware, vocab_size)
    per_sequence = activation_bytes(config, vocab_size, precision=precision, kernel=kernel)
    at_once = 4096 if device == "cpu" else 16384  # tokens of a validation batch: on a CPU they fit the caches
    micro_batch = trainer.micro_batch or _largest_divisor(sequences, room // per_sequence)
    return Choices(
        device=device,
        devices=trainer.devices,
        precision=precision,
        compile=compile_model,
        attention_kernel=kernel,
        micro_batch=micro_batch,
        accumulate=sequences // micro_batch,
        validation_batch=config.validate.batch
        or max(1, min(256, at_once // model.block_size, room // (12 * vocab_size * model.block_size))),
        threads=trainer.threads or max(1, hardware.cores // (trainer.devices if device == "cpu" else 1)),
        float32_products="medium" if hardware.onednn_fp32 else "highest",
    )


def _compiling_pays(config: TrainConfig, device: str) -> bool:
    """Compiled code saves passes over the activations; on two cores 3 to 14 ns for each number of the stream.

    (Measured: plain and rotary attention, widths 128 and 384.) At the limit that is a minute.
    """
    if device != "cpu" or config.model.dropout:  # whose numbers compiled code draws one by one on a CPU
        return device == "cuda"
    tokens = config.trainer.max_tokens or (config.trainer.max_steps or 0) * config.batch_tokens
    return tokens * config.model.n_layer * config.model.n_embd >= 2e10


def fault_in_choices(choices: Mapping[str, Any], config: TrainConfig) -> str:
    """What in saved choices (of a run that may be a stranger's) can't be chosen for this config; "" if nothing."""
    names = [field.name for field in fields(Choices)]
    unknown = [name for name in choices if name not in names]
    wrong = f"no choice is called {shown(unknown[0])}" if unknown else misfit(Choices, choices)
    if wrong:
        return wrong
    chosen = Choices(**choices)
    if chosen.precision not in ("fp32", "bf16", "fp64") or chosen.attention_kernel not in ("explicit", "fused"):
        return f"{shown(chosen.precision)}, {shown(chosen.attention_kernel)}"
    if chosen.float32_products not in ("highest", "medium"):
        return f"float32_products={shown(chosen.float32_products)}"
    if not 1 <= chosen.threads <= 4096 or not 1 <= chosen.validation_batch <= 2**24:
        return f"threads={chosen.threads}, validation_batch={chosen.validation_batch}"
    sequences = config.batch_tokens // config.model.block_size
    if chosen.devices * chosen.micro_batch * chosen.accumulate != sequences:
        return f"{chosen.devices} x {chosen.accumulate} x {chosen.micro_batch} windows, and a step has {sequences}"
    return ""


def activation_bytes(config: TrainConfig, vocab_size: int, *, precision: str, kernel: str) -> int:
    """Rough memory for the activations of one training sequence, logits included."""
    model = config.model
    width = 2 if precision == "bf16" else 4
    per_block = 34 * model.n_embd * width // 2
    if kernel == "explicit":  # writes the T x T weights down
        per_block += 3 * model.n_head * model.block_size * width
    blocks = per_block * model.n_layer
    if model.checkpoint_activations:
        blocks = model.n_embd * width * model.n_layer + per_block
    return model.block_size * (blocks + 12 * vocab_size)


def _room_for_activations(config: TrainConfig, hardware: Hardware, vocab_size: int) -> int:
    """Bytes of one device that activations may take."""
    model = config.model
    parameters = 12 * model.n_layer * model.n_embd**2 + (vocab_size + model.block_size) * model.n_embd
    left = max(0, hardware.memory_bytes - 16 * parameters)  # weights, gradients and two averages in fp32
    return left // (4 * config.trainer.devices) if hardware.device == "cpu" else left // 2


def _largest_divisor(number: int, limit: int) -> int:
    return max(divisor for divisor in range(1, number + 1) if number % divisor == 0 and divisor <= max(1, limit))
