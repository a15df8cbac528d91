"""Which runs stand for the same settings: equal but for the seed, unless the user has said it."""

from collections.abc import Sequence
from dataclasses import dataclass

from minigpt.compare.scores import Run
from minigpt.config.convert import flatten, shown, to_dict
from minigpt.faults import UserFault

# What runs of one side may differ in: it decides nothing about how good a model becomes.
FREE = (
    "seed",
    "experiment",
    "run.",
    "logger.",
    "samples.",
    "checkpoint.",
    "data.dir",
    "data.source",
    "trainer.device",
    "trainer.devices",
    "trainer.strategy",
    "trainer.micro_batch",
    "trainer.threads",
    "trainer.compile",
    "trainer.attention_kernel",
    "trainer.deterministic",
    "validate.batch",
)
MAX_CHANGES = 6  # named in a line


@dataclass(frozen=True)
class Side:
    """Runs of the same settings."""

    name: str  # A, B, ...
    runs: list[int]  # places in the list of all runs
    label: str  # what it is, for the eyes


def sides_of(runs: Sequence[Run], given: Sequence[Sequence[int]] | None) -> list[Side]:
    """The sides, in the order of their first runs.

    Args:
        runs: all of them.
        given: places of each side's runs, if the user has said it.

    Raises:
        UserFault: a run that is there twice, or nothing to compare.
    """
    by_weights: dict[str, Run] = {}
    for run in runs:
        twin = by_weights.setdefault(run.weights, run)
        if twin is not run:
            raise UserFault(f"{twin.path} and {run.path} hold the same weights: there is nothing to compare in them")
    groups = [list(side) for side in given] if given else _grouped(runs)
    if len(groups) == 1:
        groups = [[number] for number in groups[0]]
    for group in groups:
        _refuse_equal_seeds([runs[number] for number in group])
    first = settings_of(runs[groups[0][0]])
    return [
        Side(_letters(number), group, _label([runs[each] for each in group], first if number else None))
        for number, group in enumerate(groups)
    ]


def _grouped(runs: Sequence[Run]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(repr(settings_of(run)), []).append(number)
    return list(groups.values())


def settings_of(run: Run) -> dict[str, object]:
    """What decides how good the model becomes, but for the seed."""
    kept = {key: value for key, value in flatten(to_dict(run.config)).items() if not key.startswith(FREE)}
    return kept | ({"step": run.step} if run.is_checkpoint else {})


def _refuse_equal_seeds(runs: Sequence[Run]) -> None:
    seeds: dict[int, Run] = {}
    for run in runs:
        twin = seeds.setdefault(run.config.seed, run)
        if twin is not run:
            raise UserFault(
                f"{twin.path} and {run.path} are one side, and both have seed={run.config.seed}: they tell nothing "
                "about other seeds. Give one of them, or write `vs` between two sides: RUN ... vs RUN ..."
            )


def _label(runs: Sequence[Run], first: dict[str, object] | None) -> str:
    label = runs[0].path + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
    if first is None:
        return label
    own = settings_of(runs[0])
    changes = [
        f"{key}: {shown(first.get(key))} -> {shown(own.get(key))}"
        for key in sorted(first.keys() | own.keys())
        if first.get(key) != own.get(key)
    ]
    more = [f"and {len(changes) - MAX_CHANGES} more"] if len(changes) > MAX_CHANGES else []
    return label + (f"  ({', '.join(changes[:MAX_CHANGES] + more)})" if changes else "  (the same settings)")


def _letters(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"A{number}"
