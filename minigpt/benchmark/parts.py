"""Sampling, tokenization and data loading: measured in processes of their own, shown as a table each."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from minigpt.benchmark.process import run_turn
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import counted, markdown, ratios, short, spread

Say = Callable[[str], object]


def sampling(plan: Plan, folder: Path, tokens: Path, *, threads: int, say: Say) -> tuple[str, str]:
    """(the section's text, its part of the last line). A process per round."""
    task = {
        "arguments": plan.arguments(tokens),
        "checkpoints": str(folder / "new"),
        "new": plan.new_tokens,
        "checkout": str(plan.nanogpt) if plan.nanogpt else None,
        "huggingface": plan.huggingface,
    }
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    left_out: dict[str, None] = {}  # in order, each once
    for number in range(plan.rounds):
        turn = run_turn(folder, "sampling", threads=threads, **task)
        left_out |= dict.fromkeys(turn["left_out"])
        for name, batch, speed, first in turn["rows"]:
            found.setdefault((name, batch), []).append((speed, first))
        name, _, speed, _ = turn["rows"][0]
        more = len(turn["rows"]) - 1
        say(f"Round {number + 1}/{plan.rounds}  sampling: {name} {short(speed)} tokens/s at batch 1, and {more} more")
    found = {key: pairs for key, pairs in found.items() if len(pairs) == plan.rounds}  # who failed once is out
    rows = []
    for (name, batch), pairs in found.items():
        each, first = (spread([pair[place] for pair in pairs]) for place in (0, 1))
        rows.append([name, str(batch), *map(short, (each.median, each.low, each.high)),
                     f"{1e3 * batch / each.median:,.3f}", f"{1e3 * first.median:,.1f}"])  # fmt: skip
    heads = ["writer", "batch", "tokens/s", "min", "max", "ms a step", "first token, ms"]
    return f"{markdown(heads, rows)}\n\n{_about_sampling(plan, turn, left_out)}", _sampling_line(plan, found)


def _about_sampling(plan: Plan, turn: dict[str, Any], left_out: Iterable[str]) -> str:
    native = f"native code in {', '.join(turn['native'])}" if turn["native"] else "not native code here"
    rounds = counted(plan.rounds, "round")
    text = (
        f"Prompts of {turn['prompt']} tokens, {turn['new']} new ones each, all within the context of "
        f"{plan.config.model.block_size}; temperature 0.8. tokens/s are those of all texts after their first token "
        "(with it, where it takes most of the time); a step gives each text one. Medians and ends of "
        f"{rounds}. minigpt's step is {native}. New weights: what is written is noise."
    )
    return "\n".join([text, *(f"Left out: {each}." for each in left_out)])


def _sampling_line(plan: Plan, found: dict[tuple[str, int], list[tuple[float, float]]]) -> str:
    alone = {name: [speed for speed, _ in pairs] for (name, batch), pairs in found.items() if batch == 1}
    each = {name: spread(speeds) for name, speeds in alone.items()}
    speeds = [f"{name} {short(one.median)} ({short(one.low)} to {short(one.high)})" for name, one in each.items()]
    pairs = [(f"minigpt {name.split()[-1]}", name) for name in alone if not name.startswith("minigpt")]
    times = [f"{ours} over {other} {ratios(alone[ours], alone[other]).text()}" for ours, other in pairs]
    return f"sampling {plan.preset} at batch 1, tokens/s: {'; '.join(speeds + times)}"


def tokenization(plan: Plan, folder: Path) -> str:
    """The section's text. One thread: tokenizers get no more in training."""
    found = run_turn(folder, "tokenization", threads=1, rounds=plan.rounds)
    rows = [
        [name, f"{per_token:.2f}", *(text for speeds in (forth, back) for text in _speed(speeds))]
        for name, per_token, forth, back in found["rows"]
    ]
    heads = ["tokenizer", "bytes a token", "MB/s", "min to max", "back, MB/s", "min to max"]
    notes = [f"Learning {found['vocab_size']:,} bpe tokens from it took {found['learning']:.1f} s.", *found["notes"]]
    return (
        f"{markdown(heads, rows)}\n\n{found['bytes'] / 1e6:.1f} MB of Python's standard library, one process, "
        f"{counted(plan.rounds, 'round')}. {' '.join(notes)}"
    )


def _speed(speeds: list[float]) -> tuple[str, str]:
    each = spread(speeds)
    return f"{each.median:,.1f}", f"{each.low:,.1f} to {each.high:,.1f}"


def loading(plan: Plan, folder: Path, tokens: Path, *, threads: int, need: float | None) -> str:
    """The section's text.

    Args:
        plan: the benchmark.
        folder: for the turn's files.
        tokens: where the tokens are.
        threads: of the environment.
        need: tokens/s that training took; None if it was not measured.
    """
    found: dict[str, Any] = run_turn(
        folder, "loading", threads=threads, arguments=plan.arguments(tokens), rounds=plan.rounds
    )
    heads, rows = ["batches made", "tokens/s", "min", "max", "ms a batch"], []
    for name, speeds in found["rows"]:
        each = spread(speeds)
        rows.append([name, f"{each.median:,.0f}", f"{each.low:,.0f}", f"{each.high:,.0f}",
                     f"{1e3 * found['batch_tokens'] / each.median:.3f}"])  # fmt: skip
        rows[-1] += [f"{each.median / need:,.1f}"] if need else []
    text = (
        f"Batches of {found['batch_tokens']:,} tokens, {counted(plan.rounds, 'round')}. The training "
        "process makes them itself."
    )
    if need:
        heads.append("x training's need")
        text += f" Training takes {need:,.0f} tokens/s here."
    return f"{markdown(heads, rows)}\n\n{text}"
