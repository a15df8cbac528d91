"""scripts/compare.py: read the command line, score, judge, print."""

from collections.abc import Callable, Sequence

import numpy as np

from minigpt.compare.interval import MIN_WINDOWS, difference
from minigpt.compare.scores import Scores, open_run, score
from minigpt.compare.sides import Side, sides_of
from minigpt.compare.verdict import LEVEL, plus_minus, scope, verdict
from minigpt.faults import UserFault
from minigpt.machine.hardware import probe

USAGE = "Type: python scripts/compare.py RUN_A RUN_B [...]"
OPTIONS = {"which": ("best", "latest"), "device": ("auto", "cuda", "mps", "cpu"), "data.dir": None}


def compare(arguments: Sequence[str], say: Callable[[str], object] = print) -> None:
    """Compare runs on their whole validation split.

    Args:
        arguments: run directories or checkpoints, `vs` between sides if the user divides them, and OPTIONS.
        say: takes lines for the user.

    Raises:
        UserFault: the command line, a run, or two that can't be compared.
    """
    options, groups = read_arguments(arguments)
    paths = [path for group in groups for path in group]
    runs = [open_run(path, options.get("which", "best"), options.get("data.dir")) for path in paths]
    numbers = iter(range(len(paths)))
    given = [[next(numbers) for _ in group] for group in groups]
    sides = sides_of(runs, given if len(groups) > 1 else None)
    device = options.get("device", "auto")
    hardware = probe(device)
    if device not in ("auto", hardware.device):
        raise UserFault(f"device={device}: this machine, or this build of PyTorch, has none. Use device=auto")
    scores = score(runs, device=hardware.device, say=say)
    if len(scores.sizes) < MIN_WINDOWS:
        raise UserFault(
            f"the validation text is {len(scores.sizes)} windows of {scores.window:,} long; at least {MIN_WINDOWS} "
            "are wanted to judge a difference. Train on more text, or with a larger data.val_fraction"
        )
    say("")
    for line in report(sides, scores, [run.config.seed for run in runs]):
        say(line)


def read_arguments(arguments: Sequence[str]) -> tuple[dict[str, str], list[list[str]]]:
    """Options, and the runs of each side; one list where the user did not divide them."""
    options: dict[str, str] = {}
    groups: list[list[str]] = [[]]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in OPTIONS:
            allowed = OPTIONS[name]
            if allowed is not None and value not in allowed:
                raise UserFault(f"{name}={value}: wanted one of {', '.join(allowed)}")
            options[name] = value
        elif argument == "vs":
            groups.append([])
        elif argument.startswith("-"):
            raise UserFault(f"compare.py has no option {argument}. {USAGE}")
        else:
            groups[-1].append(argument)
    if sum(map(len, groups)) < 2 or not all(groups):
        raise UserFault(f"compare.py wants two runs or more, and runs on both sides of `vs`. {USAGE}")
    return options, groups


def report(sides: Sequence[Side], scores: Scores, seeds: Sequence[int]) -> list[str]:
    """The sides, and the verdict; with more than two sides a table against the first."""
    lines = [
        f"Text  {scores.sizes.sum():,.0f} {scores.unit.split()[-1]}s to predict, in {len(scores.sizes):,} windows "
        f"of {scores.window:,}; losses in {scores.unit}"
    ]
    stacked = [np.stack([scores.losses[number] for number in side.runs]) for side in sides]
    for side, losses in zip(sides, stacked, strict=True):
        own = [seeds[number] for number in side.runs]
        words = f"seed {own[0]}" if len(own) == 1 else f"seeds {', '.join(map(str, own))}"
        lines.append(f"{side.name}     {losses.mean(axis=0).sum() / scores.sizes.sum():.4f}  {words}  {side.label}")
    lines.append("")
    first, others = sides[0], sides[1:]
    level = 1 - (1 - LEVEL) / len(others)  # so that all lines hold at once (Bonferroni)
    found = [difference(stacked[0], losses, scores.sizes) for losses in stacked[1:]]
    if len(others) == 1:
        lines.append(verdict(first.name, others[0].name, found[0], unit=scores.unit))
        return [*lines, f"+- is a 95 % interval. {scope(found[0], first.name, others[0].name)}"]
    lines.append(f"Against {first.name} ({scores.unit}; all intervals together hold with 95 %)")
    for side, each in zip(others, found, strict=True):
        text = plus_minus(each.value, each.half_width(level))
        lines.append(
            f"  {side.name}  {text:>20}  {verdict(first.name, side.name, each, unit=scores.unit, level=level)}"
        )
    scopes = dict.fromkeys(scope(each, first.name, side.name) for side, each in zip(others, found, strict=True))
    return [*lines, *scopes]
