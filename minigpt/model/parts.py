"""Tensors that several processes hold in parts: which rows of each this process has."""

from typing import Any

from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a sharded tensor (a DTensor), sharing its memory; any other tensor unchanged."""
    whole: Any = tensor
    return whole.to_local() if hasattr(whole, "to_local") else tensor


def rows_of(rows: int, part: int, parts: int) -> tuple[int, int]:
    """Return the rows [first, end) of a part, cut as torch.chunk and FSDP2 do: the last part may be shorter."""
    size = -(-rows // parts)
    return min(part * size, rows), min((part + 1) * size, rows)


def held_rows(tensor: Tensor) -> slice:
    """Return which rows of a tensor `local` gives: all, or a part of a sharded one (the last axis of its mesh)."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return slice(0, len(tensor))
    return slice(*rows_of(len(tensor), mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)))
