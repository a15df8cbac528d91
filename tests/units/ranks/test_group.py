"""Where the processes of a run meet: torchrun keeps its store when it starts them again."""

from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

from minigpt.invocation import Launched
from minigpt.ranks.group import _of_this_start


def test_a_start_sees_nothing_of_an_earlier_one():
    store = dist.HashStore()
    places = [Launched(rank, world_size=3, local_rank=0, local_size=1) for rank in range(3)]
    store.set("rank 2", "was killed before rank 0 met it")
    with ThreadPoolExecutor(3) as pool:
        for number in range(2):
            starts = list(pool.map(_of_this_start, [store] * 3, places))
            assert not any(start.check(["address"]) for start in starts)
            starts[1].set("address", f"of start {number}")
            assert {start.get("address") for start in starts} == {f"of start {number}".encode()}
