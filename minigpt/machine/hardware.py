"""The machine: its device, what that can do, and how fast it is by its data sheet."""

import csv
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.machine.cores import memory_limit, usable_cores

CPUINFO = Path("/proc/cpuinfo")


class Card(NamedTuple):
    """A GPU by its maker's data sheet."""

    half: float  # dense TFLOP/s of matrix products in bf16 or fp16, without sparsity
    single: float  # TFLOP/s in fp32 as PyTorch runs it by default
    bandwidth: float  # TB/s of its memory
    memory: float  # GB


# A row for each name, as Card has its figures; of variants with one name the fastest. The first match counts.
CARDS = [*csv.reader(Path(__file__).with_name("cards.csv").read_text(encoding="utf-8").splitlines())][1:]


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
    hardware, count = probe(config.trainer.device, "trainer.device"), torch.cuda.device_count()
    if hardware.device == "cuda" and config.trainer.devices > count:
        raise UserFault(f"trainer.devices={config.trainer.devices}: this machine has {count} GPU(s)")
    return hardware


def probe(device: str, setting: str = "device") -> Hardware:
    """Return the device of this name, "auto" being the best one; `setting` names it in a fault."""
    cores, threads = usable_cores(), asked_threads()
    if device in ("auto", "cuda") and torch.cuda.is_available():
        properties, bf16 = torch.cuda.get_device_properties(0), torch.cuda.is_bf16_supported(False)
        return Hardware("cuda", properties.name, cores, bf16, properties.total_memory, asked_threads=threads)
    memory = int(min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), memory_limit()))
    if device in ("auto", "mps") and torch.backends.mps.is_available():
        return Hardware("mps", f"Apple {platform.machine()}", cores, False, memory, asked_threads=threads)
    if device not in ("auto", "cpu"):
        raise UserFault(f"{setting}={device}: this machine has none that PyTorch can use. Use {setting}=auto or cpu")
    name = _cpu_fact("model name") or f"{platform.machine()} CPU"
    # On AMD, MKL uses only AVX2; oneDNN with AVX-512 was measured at twice its speed. With AMX, "medium" rounds to bf16
    # (error 2e-3 instead of 3e-7, measured).
    amx = torch.cpu._is_amx_tile_supported()
    onednn = _cpu_fact("vendor_id") == "AuthenticAMD" and not amx
    return Hardware("cpu", name, cores, amx or torch.cpu._is_avx512_bf16_supported(), memory, onednn, threads)


def asked_threads() -> int:
    """Return the number of threads in OMP_NUM_THREADS, or 0 if the user has not set it.

    torchrun sets it to 1 if it is not set: such a 1 is ignored.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(asked) if asked.isascii() and asked.isdigit() else 0
    return 0 if threads == 1 and "TORCHELASTIC_RUN_ID" in os.environ else threads


def _cpu_fact(key: str) -> str:
    """Return what Linux states about the processor under `key`, or ""."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def memory_of_device(hardware: Hardware, processes: int) -> float:
    """Return the bytes that each of a host's processes may take: on a CPU they share its memory."""
    return hardware.memory_bytes / (processes if hardware.device == "cpu" else 1)


def card_of(name: str) -> Card | None:
    """Return the data sheet of a GPU by its name, or None if it is not in the table."""
    if "Laptop" in name:  # a laptop's chip of the same name is another
        return None
    return next((Card(*map(float, figures)) for pattern, *figures in CARDS if re.search(pattern, name)), None)


def peak_flops(hardware: Hardware, precision: str) -> float | None:
    """Return the device's dense peak in FLOP/s for MFU, or None if it is not in the table."""
    card = card_of(hardware.name) if hardware.device == "cuda" else None
    return card and 1e12 * (card.half if precision in ("bf16", "fp16") else card.single)
