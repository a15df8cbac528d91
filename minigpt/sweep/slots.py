"""The slots that trials run on: which GPUs and how many CPU threads of this machine each has."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from minigpt.config.schema import TrainerConfig
from minigpt.machine.cores import usable_cores


@dataclass(frozen=True)
class Slot:
    """One worker's share of the machine."""

    number: int
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them; empty: none
    threads: int  # CPU threads of each process of a trial

    @property
    def environment(self) -> dict[str, str]:
        """The variables that show a trial its GPUs."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}


def make_slots(workers: int, trainer: TrainerConfig) -> list[Slot]:
    """Divide the machine's devices and cores into equal shares."""
    gpus = [] if trainer.device in ("cpu", "mps") else find_gpus()
    devices, slots = trainer.devices, []
    threads = max(1, usable_cores() // (workers * (1 if gpus else devices)))
    for number in range(workers):
        places = range(number * devices, (number + 1) * devices) if gpus else ()
        slots.append(Slot(number, tuple(dict.fromkeys(gpus[place % len(gpus)] for place in places)), threads))
    return slots


def find_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs that this process may use, without loading torch."""
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
    """Return a sentence about slots that share devices; "" if none do."""
    used, cores = [gpu for slot in slots for gpu in slot.gpus], usable_cores()
    if len(used) > len(set(used)):
        return (
            f"{len(slots)} workers with {devices} GPU(s) each share {len(set(used))} GPU(s): they need memory for all "
            "at once, and each is slower"
        )
    crowded = not used and len(slots) * devices > cores
    return f"workers={len(slots)} on {cores} CPU core(s): the trials wait for each other" if crowded else ""
