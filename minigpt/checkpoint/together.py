"""Several processes that write one checkpoint: each its own part, and either all succeed or all fail."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minigpt.faults import StorageFailure


class DamagedCheckpoint(ValueError):
    """A checkpoint folder whose contents are not what its manifest says."""


@dataclass(frozen=True)
class Writers:
    """The processes that write a checkpoint, seen from one of them; by default it is alone.

    Attributes:
        rank: of this process.
        gather: takes a text from each, and returns the texts of all in the order of ranks. Waits for all.
    """

    rank: int = 0
    gather: Callable[[str], list[str]] = lambda text: [text]

    def each(self, work: Callable[[], Any]) -> list[Any]:
        """Have each process do its work, and return the results of all (JSON).

        Raises:
            OSError, DamagedCheckpoint, StorageFailure: as `work` raised it here.
            StorageFailure: it failed in another process, whose rank it names.
        """
        failure, said = None, {}
        try:
            said["made"] = work()
        except (OSError, DamagedCheckpoint, StorageFailure) as error:
            failure, said["failed"] = error, reason_of(error)
        heard = [json.loads(text) for text in self.gather(json.dumps(said))]
        if failure is not None:
            raise failure
        for rank, each in enumerate(heard):
            if "failed" in each:
                raise StorageFailure(f"{each['failed']} (rank {rank})")
        return [each["made"] for each in heard]

    def first(self, work: Callable[[], Any]) -> Any:
        """Have rank 0 alone do the work, as `each`, and return what it made."""
        return self.each(lambda: work() if self.rank == 0 else None)[0]


ALONE = Writers()


def reason_of(error: Exception) -> str:
    """Return the system's description of a failure, without its number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
