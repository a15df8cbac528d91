"""Which runs can be compared, and which stand for the same settings: equal but for the seed, or as the user says."""

from collections.abc import Sequence
from dataclasses import dataclass

from minigpt.compare.scores import Run, val_text_sha256
from minigpt.config.convert import shown, values
from minigpt.config.roles import with_role
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault

MAX_CHANGES = 6  # named in a line


@dataclass(frozen=True)
class Side:
    """Runs of the same settings."""

    name: str  # A, B, ...
    runs: list[Run]
    label: str  # their path, and what is different from the first side


def comparable(runs: Sequence[Run], left_out: list[str]) -> list[Run]:
    """The runs on the text that most of them are validated on, each weights once.

    Args:
        runs: all that could be opened.
        left_out: gets a sentence for each of the others.
    """
    several = len({run.val.fingerprint for run in runs}) > 1
    hashes = {run.val.fingerprint: val_text_sha256(run) if several else "" for run in runs}
    texts = [hashes[run.val.fingerprint] for run in runs]
    common = max(texts, key=texts.count, default="")  # the first of equals
    kept: dict[str, Run] = {}  # weights -> run
    for run, text in zip(runs, texts, strict=True):
        if text != common:
            other = runs[texts.index(common)]
            left_out.append(
                f"{run.path} is validated on another text than {other.path} ({run.val.bytes:,} and "
                f"{other.val.bytes:,} bytes): their losses can't be compared. Compare runs with the same data keys"
            )
        elif kept.setdefault(run.weights, run) is not run:
            twin = kept[run.weights].path
            left_out.append(f"{run.path} and {twin} hold the same weights: there is nothing to compare in them")
    return list(kept.values())


def by_settings(runs: Sequence[Run], left_out: list[str]) -> list[list[Run]]:
    """Runs grouped by their settings; those of one setting alone are a group each. A seed counts once in a group."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        group = groups.setdefault(repr(settings_of(run)), {})
        if group.setdefault(run.config.seed, run) is not run:
            left_out.append(f"{run.path} has the settings and the seed of {group[run.config.seed].path}")
    sides = [list(group.values()) for group in groups.values()]
    return sides if len(sides) > 1 else [[run] for run in sides[0]]


def settings_of(run: Run) -> dict[str, object]:
    """What decides how good the model becomes, but for the seed."""
    deciding = with_role(TrainConfig, "weights", "schedule") - {"seed"}
    kept: dict[str, object] = {key: value for key, value in values(run.config).items() if key in deciding}
    return kept | ({"step": run.step} if run.is_checkpoint else {})


def refuse_equal_seeds(groups: Sequence[Sequence[Run]]) -> None:
    """Refuse sides in which a seed is there twice.

    Raises:
        UserFault: there is one.
    """
    for group in groups:
        seeds: dict[int, Run] = {}
        for run in group:
            twin = seeds.setdefault(run.config.seed, run)
            if twin is not run:
                raise UserFault(
                    f"{twin.path} and {run.path} are one side, and both have seed={run.config.seed}: they tell nothing "
                    "about other seeds. Give one of them, or write `vs` between two sides: RUN ... vs RUN ..."
                )


def name_sides(groups: Sequence[list[Run]]) -> list[Side]:
    """The sides A, B, ..., labelled with what is different from the first."""
    first, sides = settings_of(groups[0][0]), []
    for number, runs in enumerate(groups):
        own = settings_of(runs[0])
        keys = [key for key in sorted(first.keys() | own.keys()) if first.get(key) != own.get(key)]
        changes = [f"{key}: {shown(first.get(key))} -> {shown(own.get(key))}" for key in keys[:MAX_CHANGES]]
        changes += [f"and {len(keys) - MAX_CHANGES} more"] if len(keys) > MAX_CHANGES else []
        label = runs[0].path + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        label += f"  ({', '.join(changes) or 'the same settings'})" if number else ""
        sides.append(Side(chr(ord("A") + number) if number < 26 else f"A{number}", runs, label))
    return sides
