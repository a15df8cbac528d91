"""What scripts/benchmark.py does: measure each part in turn, print tables, and the ratios last."""

import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import minigpt
from minigpt.benchmark.bench import Bench, Section, commit_of, describe_machine, describe_moment
from minigpt.benchmark.gpu import resuming, variants
from minigpt.benchmark.loading import loading
from minigpt.benchmark.measurement import measure
from minigpt.benchmark.sampling import sampling
from minigpt.benchmark.settings import Plan, full_path
from minigpt.benchmark.table import markdown
from minigpt.benchmark.tokens import make_tokens
from minigpt.benchmark.training import training
from minigpt.rundir.files import write_file

VOID = 1  # exit code: the speeds don't count
MEASURE: dict[str, Callable[[Bench], Section]] = {
    "training": training,
    "sampling": sampling,
    "loading": loading,
    "variants": variants,
    "resuming": resuming,
}
say = partial(print, flush=True)  # at once: a benchmark is long


def benchmark(plans: Sequence[Plan]) -> int:
    """Measure what the plans ask for, one size after the other.

    Returns:
        0, or 1 where the loss curves differ from nanoGPT's or a run does not resume exactly.

    Raises:
        MeasurementFailed: a contender of ours ended with an error.
    """
    write_to = plans[0].config.write_to or ("." if len(plans) > 1 else None)
    if write_to is not None:
        full_path(write_to).mkdir(parents=True, exist_ok=True)  # now, not when all is measured
    ours = f"Code       minigpt {minigpt.__version__} at {commit_of(Path(__file__).parents[2])}"
    nanogpt = plans[0].nanogpt
    about = [describe_machine(), describe_moment(), ours + (f", nanoGPT at {commit_of(nanogpt)}" if nanogpt else "")]
    say("\n".join(about))
    sections: list[tuple[str, Section]] = []
    for plan in plans:
        with temporary_folder() as folder:
            prepared = make_tokens(folder / "tokens", plan.preset.vocab_size)
            choices = measure(folder, "steps.probe", config=plan.training(folder / "tokens", {}))
            about.append(describe_settings(plan, choices, len(prepared.train)))
            say(about[-1])
            bench = Bench(plan, folder, prepared, choices, say)
            for part in dict.fromkeys(plan.config.what.split(",")):
                section = MEASURE[part](bench)
                sections.append((plan.config.preset, section))
                say(f"\n## {section.title}, {plan.config.preset}\n\n{section.text}\n")
                if write_to is not None:
                    write_results(full_path(write_to), about, sections)
    if summaries := [section.summary for _, section in sections if section.summary]:
        say(" | ".join(summaries))
    return VOID if any(section.void for _, section in sections) else 0


def write_results(folder: Path, about: Sequence[str], sections: Sequence[tuple[str, Section]]) -> None:
    """Write benchmark.md, all sections in one table, and benchmark.json."""
    rows = [[size, part.title, row[0], f"{row[1]} {part.heads[1]}"] for size, part in sections for row in part.rows]
    table = markdown(["size", "part", "measured", "result"], rows)
    notes = "\n\n".join(f"{part.title}, {size}: {part.note}" for size, part in sections if part.note)
    write_file(folder / "benchmark.md", "\n".join(["```", *about, "```", "", table, "", notes, ""]))
    content = {"about": about, "sections": [{"size": size, **asdict(part)} for size, part in sections]}
    write_file(folder / "benchmark.json", json.dumps(content, indent=1) + "\n")
    say(f"Written to {folder / 'benchmark.md'} and {folder / 'benchmark.json'}")


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


def describe_settings(plan: Plan, choices: dict, tokens: int) -> str:
    """What is measured, and what was left to the machine."""
    compiled = "compiled" if choices["compile"] else "not compiled"
    return (
        f"Settings   preset={plan.config.preset} {' '.join([*plan.preset.settings, *plan.typed])}\n"
        f"Choices    {choices['device']} ({choices['name']}), {choices['threads']} threads, {choices['precision']}, "
        f"{compiled}, {choices['attention_kernel']} attention, {choices['accumulate']} x {choices['micro_batch']} "
        f"sequences a step, V={choices['vocab_size']}, {tokens:,} tokens made on the spot"
    )
