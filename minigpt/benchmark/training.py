"""The training step, side by side: who takes turns, and what comes out of it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.benchmark import nanogpt
from minigpt.benchmark.agreement import Agreement, compare
from minigpt.benchmark.process import TurnFailed, run_turn
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import ratios, training_table
from minigpt.data.prepare import Prepared

OURS, BARE = "minigpt train.py", "minigpt bare loop"
Turn = dict[str, Any]
Say = Callable[[str], object]


@dataclass
class Training:
    """What was measured."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)  # entrant -> a turn per round
    notes: list[str] = field(default_factory=list)
    agreement: Agreement | None = None  # with nanoGPT's curve, where it was compared

    @property
    def void(self) -> bool:
        """Whether the curves disagree: then no speed counts."""
        return self.agreement is not None and not self.agreement.holds

    def milliseconds(self, name: str) -> list[float]:
        """Per step, of each turn."""
        return [turn["ms"] for turn in self.turns[name]]


def find_entrants(
    plan: Plan, folder: Path, prepared: Prepared, choices: dict[str, Any]
) -> dict[str, Callable[[int], Turn]]:
    """Entrant -> what makes its turn of a round, in the order in which they take turns."""
    tokens, threads = prepared.folder.parents[1], choices["threads"]
    python, device = sys.executable, choices["device"]
    settings = plan.arguments(tokens)
    common = {"arguments": settings, "warm_up": plan.warm_up}

    def own(number: int) -> Turn:
        arguments = [*settings, f"run.dir={folder / f'run-{number}'}"]
        return run_turn(
            folder, "whole", threads=threads, arguments=arguments, warm_up=plan.warm_up, product_error=number == 0
        )

    entrants: dict[str, Callable[[int], Turn]] = {
        OURS: own,
        BARE: lambda number: run_turn(folder, "bare", threads=threads, **common),
    }
    if plan.nanogpt is not None:
        place = folder / "nanogpt"
        nanogpt.lay_out(place, plan.nanogpt, prepared)
        times = {"warm_up": plan.warm_up, "steps": plan.steps}

        def shipped(command: list[str]) -> Callable[[int], Turn]:
            return lambda number: nanogpt.run(command, place, threads=threads, warm_up=plan.warm_up)

        if device != "cuda":
            entrants["nanoGPT"] = shipped(nanogpt.train_command(python, plan.config, choices, compiled=False, **times))
        entrants["nanoGPT compiled"] = shipped(
            nanogpt.train_command(python, plan.config, choices, compiled=True, **times)
        )
        if device == "cuda" and plan.preset == "124m" and (plan.nanogpt / "bench.py").is_file():
            entrants["nanoGPT bench.py"] = shipped(nanogpt.bench_command(python, plan.config, choices))
    if plan.huggingface:
        for name, bf16 in (("Hugging Face fp32", False), ("Hugging Face bf16", True)):
            entrants[name] = lambda number, bf16=bf16: run_turn(  # type: ignore[misc]
                folder, "huggingface", threads=threads, bf16=bf16, **common
            )
    return entrants


def measure_training(plan: Plan, folder: Path, prepared: Prepared, choices: dict[str, Any], say: Say) -> Training:
    """All rounds, A B C A B C ..., and the comparison of the curves before them.

    Raises:
        TurnFailed: an entrant of ours failed. Others that fail are left out, and a note says so.
    """
    found = Training()
    if plan.nanogpt is not None:
        found.agreement = compare_curves(plan, folder, prepared, choices)
        say(found.agreement.sentence)
    entrants = find_entrants(plan, folder, prepared, choices)
    found.turns = {name: [] for name in entrants}
    for number in range(plan.rounds):
        for name in list(entrants):
            try:
                turn = entrants[name](number)
            except TurnFailed as fault:
                if name in (OURS, BARE):
                    raise
                found.notes.append(f"{name} is left out: {fault}")
                say(f"WARNING    {found.notes[-1]}")
                del entrants[name], found.turns[name]
                continue
            turn["first_step"] = turn["first_step_at"] - turn["began"] if turn["first_step_at"] else None
            found.turns[name].append(turn)
            say(f"Round {number + 1}/{plan.rounds}  {name:<18} {turn['ms']:10,.2f} ms/step")
    return found


def compare_curves(plan: Plan, folder: Path, prepared: Prepared, choices: dict[str, Any]) -> Agreement:
    """Our whole Trainer and nanoGPT's model from the same weights, on the same batches, at the same rates."""
    tokens, threads, weights = prepared.folder.parents[1], choices["threads"], str(folder / "begin.safetensors")
    run_dir = f"run.dir={folder / 'curve'}"
    # nanoGPT's own warm-up: at a rate that is too high too early any rounding, bf16's too, grows to tenths of a nat.
    arguments = plan.arguments(
        tokens, "logger.every_steps=1", run_dir, "schedule.warmup_steps=100", steps=plan.curve_steps
    )
    common = {"arguments": arguments, "weights": weights, "threads": threads}
    ours = run_turn(folder, "curve", **common)
    theirs = run_turn(folder, "nanogpt_curve", checkout=str(plan.nanogpt), lr=ours["lr"], **common)
    return compare(ours["losses"], theirs["losses"], choices["precision"])


def describe_training(found: Training, plan: Plan, choices: dict[str, Any]) -> list[str]:
    """The table and what must be known to read it."""
    whole = found.turns[OURS]
    left_out = sum(turn["left_out_seconds"] for turn in whole)
    timed = sum(turn["ms"] * turn["steps"] for turn in whole) / 1e3
    lines = [
        training_table(found.turns, plan.config.batch_tokens, OURS),
        "",
        f"ms/step is the wall time of {whole[0]['steps']} optimizer steps, after {plan.warm_up} that don't count, "
        f"divided by their number; median, ends and quartiles are those of {plan.rounds} turns. First step: from the "
        "start of the process, tokens prepared, to the first optimizer step (nanoGPT: its first line).",
        f"Left out of {OURS}: {sum(turn['left_out'] for turn in whole)} validations of the whole split, "
        f"{left_out:.2f} s beside {timed:.1f} s that count. Rows, screen, saves and all else are in.",
    ]
    error = whole[0].get("product_error")
    if choices["precision"] == "fp32" and error is not None:
        lines.append(f"fp32 product of 384 x 384 against fp64, under the run's settings: relative error {error:.2g}")
    if any(name.startswith("Hugging Face") for name in found.turns):
        lines.append("Hugging Face's layers always have biases: the nearest size, not the same mathematics.")
    if found.agreement is not None:
        lines.append(found.agreement.sentence.removeprefix("Curves     "))
    return [*lines, *found.notes]


def ratio_line(found: Training, plan: Plan, choices: dict[str, Any]) -> str:
    """The last line: how many times as long the others take, medians of the rounds' ratios and their ends."""
    own = found.milliseconds(OURS)
    overhead = ratios(own, found.milliseconds(BARE))
    parts = [f"over the bare loop {overhead.text(3)}"]
    parts += [
        f"{name} {ratios(found.milliseconds(name), own).text()}" for name in found.turns if name not in (OURS, BARE)
    ]
    compiled = " compiled" if choices["compile"] else ""
    start = "VOID: the curves differ. " if found.void else ""
    return f"{start}ratios {plan.preset} {choices['precision']}{compiled}: {'; '.join(parts)}"
