"""What scripts/benchmark.py does: measure each part in turn, print tables, and the ratios last."""

import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import minigpt
from minigpt.benchmark import parts
from minigpt.benchmark.machine import busy, commit_of, describe_machine, describe_moment, load
from minigpt.benchmark.process import run_turn
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import spread
from minigpt.benchmark.tokens import make_tokens
from minigpt.benchmark.training import OURS, describe_training, measure_training, ratio_line
from minigpt.data.prepare import Prepared

VOID = 1  # exit code: the speeds don't count


def benchmark(plan: Plan) -> int:
    """Measure what the plan asks for.

    Returns:
        0, or 1 where the loss curves differ from nanoGPT's.

    Raises:
        TurnFailed: an entrant of ours ended with an error.
    """
    about = [describe_machine(), describe_moment(), describe_code(plan)]
    if warning := busy(load()[0]):
        about.append(warning)
    say("\n".join(about))
    folder = Path(tempfile.mkdtemp(prefix="minigpt-benchmark-"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: turns end, the folder goes
    try:
        prepared = make_tokens(folder / "tokens", plan.vocab_size)
        choices = run_turn(folder, "look", arguments=plan.arguments(folder / "tokens"))
        about.append(describe_settings(plan, prepared, choices))
        say(about[-1])
        return _parts(plan, folder, prepared, choices, about="\n".join(about))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _parts(plan: Plan, folder: Path, prepared: Prepared, choices: dict[str, Any], *, about: str) -> int:
    code, last, need = 0, [], None
    if "training" in plan.what:
        found = measure_training(plan, folder, prepared, choices, say)
        headline(f"Training step, {plan.preset}")
        say("\n".join(describe_training(found, plan, choices)))
        code = VOID if found.void else 0
        last.append(ratio_line(found, plan, choices))
        need = 1e3 * plan.config.batch_tokens / spread(found.milliseconds(OURS)).median
    tokens, threads = folder / "tokens", choices["threads"]
    if "sampling" in plan.what:
        text, summary = parts.sampling(plan, folder, tokens, threads=threads, say=say)
        headline(f"Sampling, {plan.preset}")
        say(text)
        last.append(summary)
    if "tokenization" in plan.what:
        text = parts.tokenization(plan, folder)
        headline("Tokenization")
        say(text)
    if "loading" in plan.what:
        text = parts.loading(plan, folder, tokens, threads=threads, need=need)
        headline(f"Data loading, {plan.preset}")
        say(text)
    if "growth" in plan.what:
        from minigpt.benchmark.growth import measure_growth

        text = measure_growth(plan, folder, tokens, threads=threads, say=say, about=about)
        headline(f"Growth, {plan.preset}")
        say(text)
        say(f"\nWritten to {plan.write_to / 'growth.md'} and drawn in {plan.write_to / 'growth.png'}")
    if last:
        say("\n" + " | ".join(last))
    return code


def say(line: str) -> None:
    """To the screen at once: a benchmark is long."""
    print(line, flush=True)


def headline(text: str) -> None:
    """Over a table."""
    say(f"\n## {text}\n")


def describe_code(plan: Plan) -> str:
    """What is measured, by commit."""
    ours = f"Code       minigpt {minigpt.__version__} at {commit_of(Path(__file__).parents[2])}"
    return ours + (f", nanoGPT at {commit_of(plan.nanogpt)}" if plan.nanogpt else "")


def describe_settings(plan: Plan, prepared: Prepared, choices: dict[str, Any]) -> str:
    """What a turn is, and what was left to the machine."""
    compiled = "compiled" if choices["compile"] else "not compiled"
    return (
        f"Settings   preset={plan.preset} {' '.join(plan.settings)}\n"
        f"Choices    {choices['device']} ({choices['name']}), {choices['threads']} threads, {choices['precision']}, "
        f"{compiled}, {choices['attention_kernel']} attention, {choices['accumulate']} x {choices['micro_batch']} "
        f"sequences a step, V={choices['vocab_size']}, {len(prepared.train):,} tokens made on the spot"
    )
