"""Tensors in several files: part r of w holds the rows of each tensor that process r of w had.

The rows of all parts in order are the whole tensor; so any number of processes can read what any other number has
written, each only its own rows, and with memory for one tensor besides those that it fills.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.checkpoint import pack, store
from minigpt.checkpoint.together import DamagedCheckpoint
from minigpt.config.convert import shown
from minigpt.faults import UserFault
from minigpt.model.parts import held_rows, local

MAX_HEADER_BYTES = 1 << 26
_PART = re.compile(r"(\w+)-(\d{1,6})-of-(\d{1,6})\.safetensors")


def part_name(name: str, part: int, parts: int) -> str:
    """Return the name of a part of a file: model.safetensors -> model-0-of-4.safetensors."""
    return name.replace(".", f"-{part}-of-{parts}.", 1)


def files_of(files: Mapping[str, Any], name: str) -> list[str]:
    """Return the files of a manifest that hold the file `name`: itself, or its parts in their order.

    Raises:
        DamagedCheckpoint: neither the file nor all of its parts are there.
    """
    if name in files:
        return [name]
    found = [match for file in files if (match := _PART.fullmatch(file)) and f"{match[1]}.safetensors" == name]
    parts = len(found)
    names = [part_name(name, part, parts) for part in range(parts)]
    if not names or set(names) != {match[0] for match in found}:
        raise DamagedCheckpoint(f"its manifest has no {name}, nor all parts of one")
    return names


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # byte of the file


class TensorFiles:
    """The tensors of one file of a checkpoint or of its parts, read piece by piece.

    Args:
        folder: of the checkpoint.
        name: model.safetensors or optimizer.safetensors.
        check: whether to compare each file with the manifest first; needless if that was done just now.

    Attributes:
        shapes: of the whole tensors, by name.
        dtypes: of each.

    Raises:
        UserFault: a file is missing, changed, or no safetensors file of floating-point numbers, or parts don't fit.
    """

    def __init__(self, folder: Path, name: str, *, check: bool = True):
        self.folder = folder
        try:
            manifest = store.read_manifest(folder)["files"]
            self.entries: dict[str, dict[str, Entry]] = {}
            for file in files_of(manifest, name):
                if check:
                    store.verify_file(folder / file, manifest[file])
                self.entries[file] = store.read_patiently(folder / file, read_header)
            self.shapes = self._joined()
            self.dtypes = {name: each.dtype for entries in self.entries.values() for name, each in entries.items()}
        except (DamagedCheckpoint, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = str(error) if isinstance(error, DamagedCheckpoint) else f"{name}: {type(error).__name__}: {error}"
            raise UserFault(f"the checkpoint {folder} can't be used: {reason[:300]}. Use another one") from None

    def _joined(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for entries in self.entries.values():
            for name, entry in entries.items():
                before = shapes.setdefault(name, entry.shape and (0, *entry.shape[1:]))
                if before[1:] != entry.shape[1:]:
                    raise ValueError(f"parts of {shown(name)} have other widths")
                shapes[name] = entry.shape and (before[0] + entry.shape[0], *entry.shape[1:])
        return shapes

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read into tensors of these names and shapes; into a sharded tensor, the rows that this process holds."""
        for name, target in targets.items():
            mine, rows = local(target).detach(), held_rows(target) if target.dim() else slice(0, 1)
            mine, first = mine if mine.dim() else mine[None], 0
            for file, entries in self.entries.items():
                if name not in entries:
                    continue
                count = entries[name].shape[0] if entries[name].shape else 1
                low, high = max(rows.start, first), min(rows.stop, first + count)
                if low < high:
                    piece = self._read(file, entries[name], low - first, high - first)
                    mine[low - rows.start : high - rows.start].copy_(piece)
                first += count

    def _read(self, file: str, entry: Entry, first: int, end: int) -> Tensor:
        width = math.prod(entry.shape[1:]) * entry.dtype.itemsize

        def read(opened: BufferedReader) -> bytearray:
            content = bytearray((end - first) * width)
            opened.seek(entry.begin + first * width)
            if opened.readinto(content) != len(content):
                raise DamagedCheckpoint(f"{self.folder / file} is shorter than it was")
            return content

        return torch.frombuffer(store.read_patiently(self.folder / file, read), dtype=entry.dtype).view(
            end - first, *entry.shape[1:]
        )


def read_header(file: BufferedReader) -> dict[str, Entry]:
    """Return the tensors of a safetensors file, by name. Sizes in its header are checked against the file's own.

    Source: https://huggingface.co/docs/safetensors (Format).

    Raises:
        ValueError, KeyError, TypeError: it is no safetensors file, or holds other than floating-point numbers.
    """
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise ValueError("its header is longer than the file")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    dtypes = {name: dtype for dtype, name in pack.DTYPES.items() if dtype.is_floating_point}
    entries, at = {}, 0
    for name, each in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, end) = dtypes[each["dtype"]], tuple(each["shape"]), each["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError(f"{shown(name)} has no shape")
        if begin != at or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{shown(name)} does not lie where it should")
        entries[name], at = Entry(dtype, shape, 8 + length + begin), end
    if 8 + length + at != size:
        raise ValueError("its size is not that of its tensors")
    return entries


def read_optimizer(folder: Path, optimizer: torch.optim.Optimizer, *, check: bool = True) -> None:
    """Put running averages back into an optimizer, from one file or its parts, keeping its hyperparameters.

    Raises:
        UserFault: as `TensorFiles`; or they are not those of this optimizer over these parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    files = TensorFiles(folder, pack.OPTIMIZER, check=check)
    if not files.shapes:
        return
    state = {
        index: {
            name: torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter.detach())
            for name in sorted(pack.averages(optimizer, parameter))
        }
        for index, parameter in enumerate(parameters)
    }
    targets = {f"{index}.{name}": tensor for index, each in state.items() for name, tensor in each.items()}
    if {name: tuple(tensor.shape) for name, tensor in targets.items()} != files.shapes:
        raise UserFault(pack.misfit(f"{len(files.shapes)} averages, some of other names or shapes"))
    files.fill(targets)
    broken = pack.first_non_finite({name: local(tensor) for name, tensor in targets.items()})
    if broken is not None:
        raise UserFault(f"{pack.OPTIMIZER} holds a non-finite average ({broken}). Use an earlier checkpoint")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
