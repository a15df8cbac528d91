"""The training step, side by side: who is measured, and what comes out of it."""

import statistics
from collections.abc import Callable
from typing import Any

from minigpt.benchmark import nanogpt
from minigpt.benchmark.agreement import Agreement, compare
from minigpt.benchmark.bench import Bench, Section
from minigpt.benchmark.measurement import MeasurementFailed
from minigpt.benchmark.table import ratios, spread

OURS, BARE = "minigpt train.py", "minigpt bare loop"
Measurement = dict[str, Any]
Found = dict[str, list[Measurement]]  # contender -> a measurement per round
HEADS = ["contender", "ms/step", "min", "max", "IQR", "tokens/s", "first step, s", f"x {OURS}"]


def contenders(bench: Bench) -> dict[str, Callable[[int], Measurement]]:
    """Contender -> what makes its measurement of a round, in the order of a round."""
    warm_up = bench.plan.preset.warm_up
    ours = {"config": bench.training(), "warm_up": warm_up}
    found: dict[str, Callable[[int], Measurement]] = {
        OURS: lambda number: train_py(bench, {}, f"run-{number}"),
        BARE: lambda _: bench.measure("steps.bare", **ours),
    }
    if bench.plan.nanogpt is not None:
        found |= nanogpt.contenders(bench, bench.plan.nanogpt)
    if bench.plan.config.huggingface:
        found["Hugging Face fp32"] = lambda _: bench.measure("huggingface.train", bf16=False, **ours)
        found["Hugging Face bf16"] = lambda _: bench.measure("huggingface.train", bf16=True, **ours)
    return found


def train_py(bench: Bench, changes: dict[str, Any], name: str) -> Measurement:
    """Measure all of train.py with some settings changed, in a run directory of this name."""
    config = bench.training({"run.dir": str(bench.folder / name), **changes})
    return bench.measure("steps.train_py", config=config, warm_up=bench.plan.preset.warm_up)


def training(bench: Bench) -> Section:
    """Compare the curves, then measure all rounds, A B C A B C ...

    Raises:
        MeasurementFailed: a contender of ours failed. Others that fail are left out, and a note says so.
    """
    agreement, notes = None, []
    if bench.plan.nanogpt is not None:
        agreement = compare_curves(bench)
        notes.append(agreement.sentence)
        bench.say(f"Curves     {agreement.sentence}")
    entered = contenders(bench)
    found: Found = {name: [] for name in entered}
    for number in range(bench.plan.config.rounds):
        for name in list(found):
            try:
                measurement = entered[name](number)
            except MeasurementFailed as fault:
                if name in (OURS, BARE):
                    raise
                notes.append(f"{name} is left out: {fault}")
                bench.say(f"WARNING    {notes[-1]}")
                del found[name]
                continue
            found[name].append(measurement)
            bench.tell(number, f"{name:<18} {measurement['ms']:10,.2f} ms/step")
    void = agreement is not None and not agreement.holds
    batch_tokens = bench.plan.config.batch_tokens
    bench.tokens_per_second = 1e3 * batch_tokens / spread(milliseconds(found[OURS])).median
    note = "\n".join([about(bench, found), *notes])
    summary = ratio_line(bench, found, void=void)
    return Section("Training step", HEADS, rows_of(found, batch_tokens), note, summary, void)


def compare_curves(bench: Bench) -> Agreement:
    """Our whole Trainer and nanoGPT's model from the same weights, on the same batches, at the same rates."""
    # nanoGPT's own warm-up: at a rate that is too high too early any rounding, bf16's too, grows to tenths of a nat.
    slow = {"logger.every_steps": 1, "schedule.warmup_steps": 100, "run.dir": str(bench.folder / "curve")}
    config = bench.training(slow, steps=bench.plan.config.curve_steps)
    task = {"config": config, "weights": str(bench.folder / "begin.safetensors")}
    ours = bench.measure("agreement.our_curve", **task)
    theirs = bench.measure("agreement.nanogpt_curve", checkout=str(bench.plan.nanogpt), lr=ours["lr"], **task)
    return compare(ours["losses"], theirs["losses"], bench.choices["precision"])


def milliseconds(measurements: list[Measurement]) -> list[float]:
    """Per step, of each measurement."""
    return [each["ms"] for each in measurements]


def first_step(measurement: Measurement) -> float | None:
    """Seconds from the start of the process to its first optimizer step, where that is known."""
    return measurement["first_step_at"] - measurement["began"] if measurement["first_step_at"] else None


def rows_of(found: Found, batch_tokens: int) -> list[list[str]]:
    """A row per contender, set against all of train.py."""
    rows = []
    for name, measurements in found.items():
        times = milliseconds(measurements)
        each, first = spread(times), [seconds for one in measurements if (seconds := first_step(one))]
        row = [name, *each.cells(2), f"{each.iqr:,.2f}", f"{1e3 * batch_tokens / each.median:,.0f}"]
        row.append(f"{statistics.median(first):.1f}" if first else "")
        rows.append([*row, "1" if name == OURS else ratios(times, milliseconds(found[OURS])).text()])
    return rows


def about(bench: Bench, found: Found) -> str:
    """What must be known to read the table."""
    biases = " Hugging Face's layers always have biases: the nearest size, not the same mathematics."
    return (
        f"ms/step is the wall time of {found[OURS][0]['steps']} optimizer steps, after {bench.plan.preset.warm_up} "
        "that don't count, divided by their number; median, ends and quartiles are those of "
        f"{bench.plan.config.rounds} measurements. First step: from the start of the process, tokens prepared, to the "
        "first optimizer step (nanoGPT: its first line). Left out of minigpt: "
        f"{sum(len(each['left_out']) for each in found[OURS])} validations of the whole split. Rows, screen, saves and "
        "all else are in." + (biases if bench.plan.config.huggingface else "")
    )


def ratio_line(bench: Bench, found: Found, *, void: bool) -> str:
    """How many times as long the others take, medians of the rounds' ratios and their ends."""
    own = milliseconds(found[OURS])
    parts = [f"over the bare loop {ratios(own, milliseconds(found[BARE])).text(3)}"]
    others = [name for name in found if name not in (OURS, BARE)]
    parts += [f"{name} {ratios(milliseconds(found[name]), own).text()}" for name in others]
    compiled = " compiled" if bench.choices["compile"] else ""
    start = "VOID: the curves differ. " if void else ""
    return f"{start}ratios {bench.plan.config.preset} {bench.choices['precision']}{compiled}: {'; '.join(parts)}"
