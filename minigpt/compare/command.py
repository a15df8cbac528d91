"""minigpt compare: opens the runs, scores them, and says in plain words which side is better."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from minigpt.compare.interval import MIN_WINDOWS, Difference, difference
from minigpt.compare.scores import Scores, score
from minigpt.compare.sides import Run, Side, comparable, name_sides, once_per_seed, open_run, settings_of
from minigpt.config.commands import CompareConfig
from minigpt.faults import NoUsableCheckpoint, UserFault
from minigpt.formats.architecture import is_foreign
from minigpt.machine.hardware import find_named

LEVEL = 0.95


def compare(config: CompareConfig, say: Callable[[str], object] = print) -> None:
    """Compare runs on their whole validation split; those that can't be compared with the others are listed at the end.

    Args:
        config: the runs, perhaps divided into sides by `vs`: then all of them must be comparable.
        say: takes lines for the user.

    Raises:
        UserFault: fewer than two runs can be compared, or with `vs` not all of them.
    """
    groups: list[list[str]] = [[]]
    for path in config.runs:
        groups.append([]) if path == "vs" else groups[-1].append(path)
    if len(config.runs) < 2 or not all(groups):
        raise UserFault("compare needs two runs or more, and runs on both sides of `vs`: RUN_A RUN_B")
    opened: list[tuple[int, Run]] = []  # the user's group, a run of it
    left_out: list[str] = []
    ours = [path for path in config.runs if path != "vs" and not is_foreign(Path(path).expanduser())]
    for number, path in ((number, path) for number, group in enumerate(groups) for path in group):
        try:
            opened.append((number, open_run(path, config.which, config.data.dir, ours)))
        except (UserFault, NoUsableCheckpoint) as fault:
            left_out.append(str(fault))
    runs = comparable([run for _, run in opened], left_out)
    divided = len(groups) > 1
    kept = once_per_seed(opened if divided else [(repr(settings_of(run)), run) for run in runs], left_out)
    if sum(map(len, kept)) < 2 or (divided and left_out):
        raise UserFault(*left_out)
    sides = name_sides(kept if len(kept) > 1 else [[run] for run in kept[0]])
    device = find_named(config.device)
    scores = score([run for side in sides for run in side.runs], device=device, say=say)
    if len(scores.sizes) < MIN_WINDOWS:
        got = f"the validation text is {len(scores.sizes)} windows of {scores.window:,} long"
        remedy = "Use more text, a larger data.val_fraction, or a data.val_source"
        raise UserFault(f"{got}; at least {MIN_WINDOWS} are wanted. {remedy}")
    for line in ["", *report(sides, scores), *([""] if left_out else []), *(f"Left out  {why}" for why in left_out)]:
        say(line)


def report(sides: Sequence[Side], scores: Scores) -> list[str]:
    """Return lines with the sides and the verdict; with more than two sides, a verdict on each against the first."""
    size = f"{scores.sizes.sum():,.0f} {scores.unit.split()[-1]}s"
    windows = f"{len(scores.sizes):,} windows of {scores.window:,}"
    lines = [f"Text  {size} to predict, in {windows}; losses in {scores.unit}"]
    stacked = [np.stack([scores.losses[run.weights_sha256] for run in side.runs]) for side in sides]
    for side, losses in zip(sides, stacked, strict=True):
        seeds = f"seed{'s' if len(side.runs) > 1 else ''} {', '.join(str(run.config.seed) for run in side.runs)}"
        lines.append(f"{side.name}     {losses.mean(axis=0).sum() / scores.sizes.sum():.4f}  {seeds}  {side.label}")
    first, others = sides[0].name, [side.name for side in sides[1:]]
    level = 1 - (1 - LEVEL) / len(others)  # so that all lines hold at once (Bonferroni)
    found = [difference(stacked[0], losses, scores.sizes) for losses in stacked[1:]]
    verdicts = [verdict(first, other, each, scores.unit, level) for other, each in zip(others, found, strict=True)]
    scopes = dict.fromkeys(scope(each, first, other) for other, each in zip(others, found, strict=True))
    if len(others) == 1:
        return [*lines, "", verdicts[0], f"+- is a 95 % interval. {next(iter(scopes))}"]
    lines += ["", f"Against {first} (+- are intervals that all hold together with 95 %)"]
    return [*lines, *(f"  {other}  {line}" for other, line in zip(others, verdicts, strict=True)), *scopes]


def verdict(a: str, b: str, found: Difference, unit: str, level: float = LEVEL, more: str = "much text") -> str:
    """Return which side is better and by how much, or what it would take to tell: so many times as `more`."""
    half = found.half_width(level)
    if abs(found.value) > half:
        return f"{b if found.value < 0 else a} is better by {plus_minus(abs(found.value), half)} {unit}"
    if found.value == 0:
        advice = "they are equal"
    elif found.seed_variance is None:
        times = max(1.1, found.text_missing(level))
        advice = f"about {times:.2g} times as {more} would" if times < 100 else "they are all but equal"
    elif missing := found.seeds_missing(level):
        advice = f"about {missing} more {'seed' if missing == 1 else 'seeds'} a side would"
    else:
        advice = "more seeds alone would not; the difference is too small for this validation text"
    return f"cannot tell: {b} - {a} = {plus_minus(found.value, half)} {unit}; {advice}"


def scope(found: Difference, a: str, b: str) -> str:
    """Return what the verdict judges: two checkpoints, or the settings."""
    if found.seed_variance is None:
        judged = "One seed a side: this judges these two checkpoints, not the settings."
        return f"{judged} To judge those, train each with other seeds (seed=1, seed=2, ...), which may differ by more."
    spread = f"Runs of one side differ by {math.sqrt(found.seed_variance):.4f} (standard deviation over seeds)."
    if 1 in found.seeds:
        spread += f" {a if found.seeds[0] == 1 else b} has one seed: it is taken to scatter as the other does."
    return f"{spread} This judges the settings, on text of this kind."


def plus_minus(value: float, half: float) -> str:
    """Return text like 0.0123 +- 0.0042: two significant digits of the uncertainty, at least three decimals."""
    places = 3 if half == 0 else min(9, max(3, 1 - math.floor(math.log10(half))))
    return f"{value:.{places}f} +- {half:.{places}f}"
