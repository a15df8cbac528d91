"""What minigpt benchmark does: measure each part in turn, print tables, and the ratios last."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import minigpt
from minigpt.benchmark.bench import Bench, Section, commit_of, describe_machine, describe_moment
from minigpt.benchmark.loading import loading
from minigpt.benchmark.measurement import measure
from minigpt.benchmark.sampling import sampling
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.tokenizing import tokenization
from minigpt.benchmark.tokens import make_tokens
from minigpt.benchmark.training import training

VOID = 1  # exit code: the speeds don't count
MEASURE: dict[str, Callable[[Bench], Section]] = {
    "training": training,
    "sampling": sampling,
    "tokenization": tokenization,
    "loading": loading,
}
say = partial(print, flush=True)  # at once: a benchmark is long


def benchmark(plan: Plan) -> int:
    """Measure what the plan asks for.

    Returns:
        0, or 1 where the loss curves differ from nanoGPT's.

    Raises:
        MeasurementFailed: a contender of ours ended with an error.
    """
    say(about := "\n".join([describe_machine(), describe_moment(), describe_code(plan)]))
    with temporary_folder() as folder:
        prepared = make_tokens(folder / "tokens", plan.preset.vocab_size)
        choices = measure(folder, "steps.probe", config=plan.training(folder / "tokens", {}))
        say(settings := describe_settings(plan, choices, len(prepared.train)))
        bench = Bench(plan, folder, prepared, choices, f"{about}\n{settings}", say)
        sections = []
        for part in dict.fromkeys(plan.config.what.split(",")):
            sections.append(section := MEASURE[part](bench))
            say(f"\n## {section.title}, {plan.config.preset}\n\n{section.text}")
    if summaries := [section.summary for section in sections if section.summary]:
        say("\n" + " | ".join(summaries))
    return VOID if any(section.void for section in sections) else 0


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone when the block ends; SIGTERM ends the block as Ctrl-C does, and the measurement in it."""
    folder = Path(tempfile.mkdtemp(prefix="minigpt-benchmark-"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def describe_code(plan: Plan) -> str:
    """What is measured, by commit."""
    ours = f"Code       minigpt {minigpt.__version__} at {commit_of(Path(__file__).parents[2])}"
    return ours + (f", nanoGPT at {commit_of(plan.nanogpt)}" if plan.nanogpt else "")


def describe_settings(plan: Plan, choices: dict, tokens: int) -> str:
    """What is measured, and what was left to the machine."""
    compiled = "compiled" if choices["compile"] else "not compiled"
    return (
        f"Settings   preset={plan.config.preset} {' '.join([*plan.preset.settings, *plan.typed])}\n"
        f"Choices    {choices['device']} ({choices['name']}), {choices['threads']} threads, {choices['precision']}, "
        f"{compiled}, {choices['attention_kernel']} attention, {choices['accumulate']} x {choices['micro_batch']} "
        f"sequences a step, V={choices['vocab_size']}, {tokens:,} tokens made on the spot"
    )
