"""`minigpt plan budget=...`: the expected result of several training times, as a table and a picture."""

from collections.abc import Mapping
from pathlib import Path

from minigpt.config.commands import PlanConfig
from minigpt.config.convert import seconds_of
from minigpt.files import replaced
from minigpt.machine.hardware import find_device
from minigpt.ranks.group import Processes
from minigpt.report.curves import BASELINE, GRID, VALIDATION, drawing, plain
from minigpt.sizing.dial import Dial, Measure, Pilot, forecasts, of_counting
from minigpt.sizing.law import Size, Text

PATIENCE = 150.0  # seconds; measuring takes up to a tenth of them
START_SECONDS = 6.0  # from typing `train` to the choice of a size


def plan_budgets(config: PlanConfig, measure: Measure, pilot: Pilot) -> str:
    """Return a table with a row for each budget; draw it beside the prepared text."""
    budgets = sorted(map(str.strip, str(config.budget).split(",")), key=lambda budget: seconds_of(budget) or 0.0)
    dial = Dial(config, find_device(config).device, measure, pilot, PATIENCE, Processes())
    is_free = "vocab_size" not in dial.fixed
    prepared, text = dial.read(0.8 * (seconds_of(budgets[0]) or 0.0))
    if is_free and prepared.tokenizer.name == "bpe":
        del dial.fixed["vocab_size"]
    order = [budgets[0], budgets[-1], *budgets[1:-1]]  # the ends are measured first
    for _ in range(2):  # what is measured for one budget changes the speeds that others were chosen with
        made = {budget: dial.choose(text, len(prepared.val), budget, lambda: START_SECONDS) for budget in order}
    sizes = {budget: made[budget] for budget in budgets}
    picture = prepared.folder / "budget.png"
    plot_sizes(sizes, text, picture)
    limits: dict[str, list[str]] = {}
    for budget, size in sizes.items():
        for sentence in dial.limits(text, size, START_SECONDS, seconds_of(budget) or 0.0):
            limits.setdefault(sentence, []).append(budget)
    notes = [f"Note       {', '.join(which)}: {sentence}" for sentence, which in limits.items()]
    return "\n".join(["", forecasts(sizes), of_counting(text), *notes, f"Picture    {picture}"])


def plot_sizes(sizes: Mapping[str, Size], text: Text, path: Path) -> None:
    """Draw the bits per byte to expect over time, with their range and the baselines."""
    with drawing(size=(6.4, 3.6), font_size=9, dpi=150) as figure, replaced(path) as file:
        axes, times, chosen = figure.subplots(), [seconds_of(budget) or 0.0 for budget in sizes], list(sizes.values())
        axes.fill_between(times, [size.low for size in chosen], [size.high for size in chosen], color=GRID)
        axes.plot(times, [size.bits_per_byte for size in chosen], color=VALIDATION, marker="o")
        lines = sorted([(text.kneser_ney, "7-gram"), (text.xz, "xz")])
        for (bits, name), side in zip(lines, ("top", "bottom"), strict=True):  # of the line, so that names keep apart
            axes.axhline(bits, color=BASELINE, linestyle="--")
            axes.text(times[-1], bits, name, color=BASELINE, ha="right", va=side)
        axes.set_xscale("log")
        axes.set_xticks(times, list(sizes))
        axes.minorticks_off()
        axes.set_xlabel("time")
        axes.set_ylabel("bits per byte to expect")
        plain(axes)
        figure.savefig(file, format="png")
