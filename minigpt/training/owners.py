"""Work on whole matrices whose rows are spread over processes: one process, its owner, gathers each matrix.

So a matrix is worked on once and not by every process, and every process has about the same work. Rows travel to the
owners in one exchange, and back in another.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.model.parts import rows_of

Shape = tuple[int, int]


def share_out(costs: Sequence[float], owners: int) -> list[int]:
    """Return an owner for each piece of work: the most expensive first, each to the owner with the least to do."""
    load, chosen = [0.0] * owners, [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        chosen[index] = load.index(min(load))
        load[chosen[index]] += costs[index]
    return chosen


def by_owners(
    parts: Sequence[Tensor],
    shapes: Sequence[Shape],
    work: Callable[[list[int], list[Tensor]], list[Tensor]],
    group: dist.ProcessGroup,
) -> list[Tensor]:
    """Have work done on whole matrices, each by its owner. All processes of the group call it.

    Args:
        parts: this process's rows of each matrix, of one dtype.
        shapes: of the whole matrices.
        work: (indices, the whole matrices of these indices) -> as many matrices of the same shapes.
        group: the processes that hold the matrices together.

    Returns:
        This process's rows of what `work` made.
    """
    me, size = dist.get_rank(group), dist.get_world_size(group)
    owners = share_out([rows * columns * min(rows, columns) for rows, columns in shapes], size)
    owned = [[index for index, owner in enumerate(owners) if owner == rank] for rank in range(size)]

    def piece(index: int, rank: int) -> Shape:
        first, end = rows_of(shapes[index][0], rank, size)
        return end - first, shapes[index][1]

    sent = [[parts[index] for index in mine] for mine in owned]
    came = exchange(sent, [[piece(index, rank) for index in owned[me]] for rank in range(size)], group, like=parts[0])
    made = work(owned[me], [torch.cat(rows) for rows in zip(*came, strict=True)])
    cut = [
        each.split([piece(index, rank)[0] for rank in range(size)]) for index, each in zip(owned[me], made, strict=True)
    ]
    back = [[pieces[rank] for pieces in cut] for rank in range(size)]
    came = exchange(back, [[piece(index, me) for index in mine] for mine in owned], group, like=parts[0])
    found = dict(zip(itertools.chain(*owned), itertools.chain(*came), strict=True))
    return [found[index] for index in range(len(parts))]


def exchange(
    sent: list[list[Tensor]], shapes: list[list[Shape]], group: dist.ProcessGroup, *, like: Tensor
) -> list[list[Tensor]]:
    """Send each process its tensors, and return those received from each, in one collective.

    Args:
        sent: tensors of one dtype, by the process that receives them.
        shapes: of the tensors that will arrive, by the process that sends them.
        group: the processes.
        like: of their dtype and device.
    """
    out = torch.cat([like.new_empty(0), *(each.flatten() for tensors in sent for each in tensors)])
    lengths = [[rows * columns for rows, columns in each] for each in shapes]
    room = like.new_empty(sum(map(sum, lengths)))
    dist.all_to_all_single(
        room.view(torch.uint8),  # bytes, which every backend takes
        out.view(torch.uint8),
        output_split_sizes=[sum(each) * like.element_size() for each in lengths],
        input_split_sizes=[sum(tensor.nbytes for tensor in tensors) for tensors in sent],
        group=group,
    )
    pieces = iter(room.split(list(itertools.chain(*lengths))))
    return [[next(pieces).view(shape) for shape in each] for each in shapes]
