"""The machine: its device, what that can do, and how fast it is by its data sheet."""

import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.machine.cores import memory_limit, usable_cores

CPUINFO = Path("/proc/cpuinfo")

# Dense matrix peaks of real chips in TFLOP/s (without sparsity): (bf16 or fp16, fp32 as PyTorch runs it by default).
# Source: the makers' data sheets.
PEAKS: dict[str, tuple[float, float]] = {
    r"B200|GB200": (2250.0, 80.0),
    r"H100 NVL": (835.0, 60.0),
    r"H100.*PCIe": (756.0, 51.0),
    r"H200|H100|GH200": (989.4, 66.9),
    r"A100": (312.0, 19.5),
    r"A10G": (70.0, 31.5),
    r"L40S": (362.0, 91.6),
    r"L4\b": (121.0, 30.3),
    r"V100": (125.0, 15.7),
    r"T4\b": (65.0, 8.1),
    r"RTX 5090": (209.5, 104.8),
    r"RTX 4090": (165.2, 82.6),
    r"RTX 3090$": (71.0, 35.6),
    r"RTX A6000": (154.8, 38.7),
}


@dataclass(frozen=True)
class Hardware:
    """What a run can use."""

    device: str  # cuda | mps | cpu
    name: str  # of the accelerator, or of the processor
    cores: int  # CPU cores this process may use
    bf16: bool  # has fast bf16 products
    memory_bytes: int  # of the device
    onednn_fp32: bool = False  # fp32 products are faster through oneDNN, and as exact
    asked_threads: int = 0  # threads that OMP_NUM_THREADS asks for; 0 if it asks for none


def find_device(config: TrainConfig) -> Hardware:
    """Return the device that `trainer.device` names."""
    hardware, count = _existing(config.trainer.device, "trainer.device"), torch.cuda.device_count()
    if hardware.device == "cuda" and config.trainer.devices > count:
        raise UserFault(f"trainer.devices={config.trainer.devices}: this machine has {count} GPU(s)")
    return hardware


def find_named(device: str) -> str:
    """Return the device that `device=` names, "auto" being the best one."""
    return _existing(device, "device").device


def _existing(device: str, setting: str) -> Hardware:
    hardware = probe(device)
    if device not in ("auto", hardware.device):
        raise UserFault(f"{setting}={device}: this machine has none that PyTorch can use. Use {setting}=auto or cpu")
    return hardware


def probe(device: str = "auto") -> Hardware:
    """Return what the machine has: its best device, or the one named by `device`, if it is there."""
    cores, threads = usable_cores(), asked_threads()
    if device in ("auto", "cuda") and torch.cuda.is_available():
        properties, bf16 = torch.cuda.get_device_properties(0), torch.cuda.is_bf16_supported(False)
        return Hardware("cuda", properties.name, cores, bf16, properties.total_memory, asked_threads=threads)
    memory = int(min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), memory_limit()))
    if device in ("auto", "mps") and torch.backends.mps.is_available():
        return Hardware("mps", f"Apple {platform.machine()}", cores, False, memory, asked_threads=threads)
    name = _cpu_fact("model name") or f"{platform.machine()} CPU"
    # On AMD, MKL uses only AVX2; oneDNN with AVX-512 was measured at twice its speed. With AMX, "medium" rounds to bf16
    # (error 2e-3 instead of 3e-7, measured).
    onednn = _cpu_fact("vendor_id") == "AuthenticAMD" and not torch.cpu._is_amx_tile_supported()
    return Hardware("cpu", name, cores, _cpu_bf16(), memory, onednn, threads)


def asked_threads() -> int:
    """Return the threads that OMP_NUM_THREADS asks for, or 0 if it asks for none.

    torchrun sets it to 1 where it is not set: that asks for none.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(asked) if asked.isascii() and asked.isdigit() else 0
    return 0 if threads == 1 and "TORCHELASTIC_RUN_ID" in os.environ else threads


def _cpu_bf16() -> bool:
    """Return whether the processor multiplies bf16 in hardware: otherwise bf16 is many times slower than fp32."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _cpu_fact(key: str) -> str:
    """Return what Linux states about the processor under `key`, or ""."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def memory_of_device(hardware: Hardware, processes: int) -> float:
    """Return the bytes that each of a host's processes may take: on a CPU they share its memory."""
    return hardware.memory_bytes / (processes if hardware.device == "cpu" else 1)


def peak_flops(hardware: Hardware, precision: str) -> float | None:
    """Return the device's dense peak in FLOP/s for MFU, or None if it is not in the table."""
    if hardware.device != "cuda" or "Laptop" in hardware.name:  # a laptop's chip of the same name is another
        return None
    for pattern, (half, single) in PEAKS.items():
        if re.search(pattern, hardware.name):
            return 1e12 * (half if precision in ("bf16", "fp16") else single)
    return None
