"""What scripts/compare.py does: open the runs, score them, judge, print."""

from collections.abc import Callable, Sequence

import numpy as np

from minigpt.compare.interval import MIN_WINDOWS, difference
from minigpt.compare.scores import Run, Scores, open_run, score
from minigpt.compare.sides import Side, by_settings, comparable, name_sides, refuse_equal_seeds
from minigpt.compare.verdict import LEVEL, plus_minus, scope, verdict
from minigpt.config.commands import CompareConfig
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.machine.hardware import probe


def compare(config: CompareConfig, say: Callable[[str], object] = print) -> None:
    """Compare runs on their whole validation split; those that can't be compared with the others are listed at the end.

    Args:
        config: the runs, with `vs` where the user divides them into sides: then all of them must be comparable.
        say: takes lines for the user.

    Raises:
        UserFault: less than two runs can be compared, or not all of divided ones.
    """
    groups: list[list[str]] = [[]]
    for path in config.runs:
        groups.append([]) if path == "vs" else groups[-1].append(path)
    if len(config.runs) < 2 or not all(groups):
        raise UserFault("compare wants two runs or more, and runs on both sides of `vs`, like RUN_A RUN_B")
    left_out: list[str] = []
    opened = [_open(group, config, left_out) for group in groups]
    runs = comparable([run for group in opened for run in group], left_out)
    if len(runs) < 2 or (len(groups) > 1 and left_out):
        raise UserFault(*left_out)
    if len(groups) > 1:
        refuse_equal_seeds(opened)
    sides = name_sides(opened if len(groups) > 1 else by_settings(runs, left_out))
    runs = [run for side in sides for run in side.runs]
    if len(runs) < 2:
        raise UserFault(*left_out)
    hardware = probe(config.device)
    if config.device not in ("auto", hardware.device):
        raise UserFault(f"device={config.device}: this machine, or this build of PyTorch, has none. Use device=auto")
    scores = score(runs, device=hardware.device, say=say)
    if len(scores.sizes) < MIN_WINDOWS:
        raise UserFault(
            f"the validation text is {len(scores.sizes)} windows of {scores.window:,} long; at least {MIN_WINDOWS} "
            "are wanted to judge a difference. Train on more text, or with a larger data.val_fraction"
        )
    say("")
    for line in report(sides, scores):
        say(line)
    for number, reason in enumerate(left_out):
        say(f"Left out  {reason}" if number else f"\nLeft out  {reason}")


def _open(paths: Sequence[str], config: CompareConfig, left_out: list[str]) -> list[Run]:
    runs = []
    for path in paths:
        try:
            runs.append(open_run(path, config.which, config.data.dir))
        except (UserFault, NoUsableCheckpoint) as fault:
            left_out.append(str(fault))
    return runs


def report(sides: Sequence[Side], scores: Scores) -> list[str]:
    """The sides, and the verdict; with more than two sides a table against the first."""
    lines = [
        f"Text  {scores.sizes.sum():,.0f} {scores.unit.split()[-1]}s to predict, in {len(scores.sizes):,} windows "
        f"of {scores.window:,}; losses in {scores.unit}"
    ]
    stacked = [np.stack([scores.losses[run.weights] for run in side.runs]) for side in sides]
    for side, losses in zip(sides, stacked, strict=True):
        seeds = ", ".join(str(run.config.seed) for run in side.runs)
        words = f"seed{'s' if len(side.runs) > 1 else ''} {seeds}"
        lines.append(f"{side.name}     {losses.mean(axis=0).sum() / scores.sizes.sum():.4f}  {words}  {side.label}")
    lines.append("")
    first, others = sides[0].name, sides[1:]
    level = 1 - (1 - LEVEL) / len(others)  # so that all lines hold at once (Bonferroni)
    found = [difference(stacked[0], losses, scores.sizes) for losses in stacked[1:]]
    scopes = dict.fromkeys(scope(each, first, side.name) for side, each in zip(others, found, strict=True))
    if len(others) == 1:
        lines.append(verdict(first, others[0].name, found[0], unit=scores.unit))
        return [*lines, f"+- is a 95 % interval. {next(iter(scopes))}"]
    lines.append(f"Against {first} ({scores.unit}; all intervals together hold with 95 %)")
    for side, each in zip(others, found, strict=True):
        told = verdict(first, side.name, each, unit=scores.unit, level=level)
        lines.append(f"  {side.name}  {plus_minus(each.value, each.half_width(level)):>20}  {told}")
    return [*lines, *scopes]
