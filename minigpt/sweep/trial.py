"""A trial: one point of the search, what became of it, and where its runs lie."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"


@dataclass
class Trial:
    """What the ledger knows of a trial."""

    number: int
    params: dict[str, Any]
    state: str = RUNNING
    value: float | None = None
    curve: dict[int, float] = field(default_factory=dict)  # tokens -> best value so far, where trials are compared
    facts: dict[str, Any] = field(default_factory=dict)  # cause, tail, values (one a seed), seconds ...

    @property
    def finished(self) -> bool:
        """Whether its result stands."""
        return self.state != RUNNING

    @property
    def label(self) -> str:
        """As folders and tables name it."""
        return f"{self.number:04d}"


def run_directory(folder: Path, number: int, place: int, seeds: int) -> Path:
    """The run of a trial's seed at this place (0, 1, ...)."""
    return folder / "trials" / (f"{number:04d}" if seeds == 1 else f"{number:04d}-{place}")


def standard_error(values: list[float]) -> float | None:
    """Of the mean; None for fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    mean = sum(values) / count
    return (sum((value - mean) ** 2 for value in values) / (count - 1) / count) ** 0.5


def ranked(trials: list[Trial]) -> list[Trial]:
    """Complete trials by value, then pruned ones, running ones and failed ones."""
    order = {COMPLETE: 0, PRUNED: 1, RUNNING: 2, FAILED: 3}
    return sorted(
        trials,
        key=lambda trial: (
            order[trial.state],
            trial.value if trial.value is not None and trial.finished else float("inf"),
            trial.number,
        ),
    )


def best_trial(trials: list[Trial]) -> Trial | None:
    """The complete trial of the lowest value, the first of equals."""
    first = next(iter(ranked(trials)), None)
    return first if first is not None and first.state == COMPLETE else None
