"""The places where trials run on this machine: which GPUs and how many CPU threads each has."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from minigpt.config.schema import TrainConfig
from minigpt.machine.cores import usable_cores


@dataclass(frozen=True)
class Slot:
    """One worker's share of the machine."""

    number: int
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them; empty: none
    threads: int  # CPU threads of each process of a trial

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the trial's processes."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}


def share_out(workers: int, config: TrainConfig) -> list[Slot]:
    """The machine's devices and cores, in equal parts."""
    gpus = [] if config.trainer.device in ("cpu", "mps") else find_gpus()
    devices = config.trainer.devices
    cores = usable_cores()
    processes = workers * (1 if gpus else devices)
    return [
        Slot(
            number,
            tuple(
                dict.fromkeys(gpus[(number * devices + place) % len(gpus)] for place in range(devices if gpus else 0))
            ),
            max(1, cores // processes),
        )
        for number in range(workers)
    ]


def find_gpus() -> list[str]:
    """Names of the NVIDIA GPUs that this process may use, without loading torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(place) for place, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def note_on_slots(slots: list[Slot], devices: int) -> str:
    """What is worth a line before the work begins; "" if nothing is."""
    used = [gpu for slot in slots for gpu in slot.gpus]
    if len(used) > len(set(used)):
        return (
            f"{len(slots)} workers with {devices} GPU(s) each share {len(set(used))} GPU(s): they need memory for all "
            "at once, and each is slower"
        )
    cores = usable_cores()
    if not used and len(slots) * devices > cores:
        return f"workers={len(slots)} on {cores} CPU core(s): the trials wait for each other"
    return ""
